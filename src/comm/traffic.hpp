// What one rank sends to the others in each verb, by the verb's definition: the same numbers however the data
// moves (shared memory, messages, or nothing at all in an imagined group). In bytes; O(log leaves)
// arithmetic.
#pragma once

#include "cartan/comm/communicator.hpp"

namespace cartan::comm {

/// This rank's part goes to everyone else.
std::uint64_t sent_by_all_gather(std::size_t own_bytes, int size);
/// Everything but the block that stays here.
std::uint64_t sent_by_all_to_all(std::size_t in_bytes, int size);
/// The root sends to everyone else; the others send nothing.
std::uint64_t sent_by_broadcast(std::size_t bytes, int root, int rank, int size);
/// Nothing where a rank sends to itself.
std::uint64_t sent_by_send(std::size_t bytes, int peer, int rank);
/// The nodes of this rank's stack, of the chunks that others own.
std::uint64_t sent_by_reduce_scatter(const PartialSums& sums, int rank, int size);
/// A reduce_scatter, and an all_gather of this rank's chunk.
std::uint64_t sent_by_all_reduce(const PartialSums& sums, int rank, int size);

/// All chunks of `count` elements but its own; to_all: and this rank's chunk to everyone else.
std::uint64_t sent_by_library_sum(Index count, int rank, int size, int shard, bool to_all);

/// Nodes on the stack of a holder of `leaves`: the size of CanonicalTree::stack_of_range, without building
/// it.
int nodes_of_range(const CanonicalTree& tree, LeafRange leaves);

}  // namespace cartan::comm
