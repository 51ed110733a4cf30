// Formulas of communication volume, one a verb.
#include "comm/traffic.hpp"

#include <algorithm>

namespace cartan::comm {
namespace {

std::uint64_t bytes_of(Index floats) { return static_cast<std::uint64_t>(floats) * sizeof(float); }

Index own_chunk(const PartialSums& sums, int rank, int size) {
  const LeafRange chunk = chunk_range(sums.count, rank, size, sums.shard);
  return chunk.end - chunk.begin;
}

}  // namespace

std::uint64_t sent_by_all_gather(std::size_t own_bytes, int size) {
  return own_bytes * static_cast<std::uint64_t>(size - 1);
}

std::uint64_t sent_by_all_to_all(std::size_t in_bytes, int size) {
  return in_bytes - in_bytes / static_cast<std::uint64_t>(size);
}

std::uint64_t sent_by_broadcast(std::size_t bytes, int root, int rank, int size) {
  return rank == root ? bytes * static_cast<std::uint64_t>(size - 1) : 0;
}

std::uint64_t sent_by_send(std::size_t bytes, int peer, int rank) { return peer == rank ? 0 : bytes; }

std::uint64_t sent_by_reduce_scatter(const PartialSums& sums, int rank, int size) {
  const LeafRange leaves = sums.leaves.value_or(LeafRange{0, sums.tree->leaves()});
  const LeafRange own = leaf_range(leaves.end - leaves.begin, rank / sums.parts, size / sums.parts);
  const int nodes = nodes_of_range(*sums.tree, {leaves.begin + own.begin, leaves.begin + own.end});
  return bytes_of(nodes * (sums.count - own_chunk(sums, rank, size)));
}

std::uint64_t sent_by_all_reduce(const PartialSums& sums, int rank, int size) {
  return sent_by_reduce_scatter(sums, rank, size) +
         sent_by_all_gather(bytes_of(own_chunk(sums, rank, size)), size);
}

std::uint64_t sent_by_library_sum(Index count, int rank, int size, int shard, bool to_all) {
  const LeafRange chunk = chunk_range(count, rank, size, shard);
  const std::uint64_t own = bytes_of(chunk.end - chunk.begin);
  return bytes_of(count) - own + (to_all ? sent_by_all_gather(own, size) : 0);
}

int nodes_of_range(const CanonicalTree& tree, LeafRange leaves) {
  // From the left, each node is the widest that begins there and whose existing leaves are all in the range.
  int nodes = 0;
  for (Index at = leaves.begin, width = 1; at < leaves.end; at += width, ++nodes) {
    width = 1;
    while (width < tree.leaves() && at % (2 * width) == 0 &&
           std::min(at + 2 * width, tree.leaves()) <= leaves.end) {
      width *= 2;
    }
  }
  return nodes;
}

}  // namespace cartan::comm
