// Who writes which bytes. A block is written, and its checksum taken, by one rank: the one that holds all of
// it in one slab; or else its owner, to whom every holder sends its part. So all writes are large, and the
// checksums, like the file, do not depend on the ranks.
//
// Owners have ranges of blocks of equal number. Fragments travel in rounds (fragment_exchange.hpp): in each
// one an owner puts a part of its blocks together, which bounds the memory. Where ranks hold large contiguous
// shares there is one round.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "blocks.hpp"
#include "cartan/core/canonical_tree.hpp"
#include "group.hpp"
#include "shared_file.hpp"

namespace cartan::store {

/// A run of whole blocks, one after another in memory as in the file.
struct BlockRun {
  Index first = 0, count = 0;
  const std::byte* data = nullptr;
  /// Whether `block` at `next` continues the run. (All blocks but a tensor's last are full.)
  bool ends_before(Index block, const std::byte* next) const {
    return first + count == block && data + static_cast<std::size_t>(count) * kBlockBytes == next;
  }
};
/// A part of a block that this rank does not hold all of.
struct Fragment {
  Index block = 0;
  std::size_t begin = 0, bytes = 0;  ///< inside the block
  const std::byte* data = nullptr;
};
struct Shares {
  std::vector<BlockRun> whole;      ///< sorted, each within one slab; at most kLargestRun blocks
  std::vector<Fragment> fragments;  ///< sorted
};
/// Small enough that a run that was hashed is still in the cache when it is written.
inline constexpr Index kLargestRun = 16;

/// Cuts slabs at the blocks' boundaries. Throws InternalError: a slab outside of its tensor, whole blocks
/// twice.
Shares split_slabs(std::span<const TensorInfo> tensors, const BlockTable& table, std::span<const Slab> slabs);

/// Bytes of fragments, with their headers, that an owner should receive in a round: what a cache may hold.
inline constexpr std::int64_t kRoundBytes = std::int64_t{8} << 20;

/// Which blocks rank `rank` of `ranks` puts together in round `round` of `rounds`.
LeafRange owned_blocks(const BlockTable& table, int rank, int ranks, Index round, Index rounds);

/// Those that belong to the blocks of a range.
std::span<const Fragment> fragments_of(const Shares& shares, LeafRange blocks);

/// What a message says of fragments: their bytes too, or only which they are.
enum class Payload { none, data };

/// Bytes of the messages to each owner in each round: [ranks, rounds].
std::vector<std::int64_t> message_bytes(const Shares& shares, const BlockTable& table, int ranks,
                                        Index rounds, Payload payload);
/// The fragments of a round as messages to the blocks' owners, in `memory`.
Outgoing pack_fragments(const Shares& shares, const BlockTable& table, int ranks, Index round, Index rounds,
                        Payload payload, RoundMemory& memory);
/// What messages of several ranks say, sorted; `data` points into them, or is null.
std::vector<Fragment> unpack_fragments(std::span<const std::byte> messages, Payload payload);

/// The blocks that sorted fragments make up. Throws InternalError that names tensor and elements that are
/// missing or came twice.
std::vector<Index> complete_blocks(std::span<const TensorInfo> tensors, const BlockTable& table,
                                   std::span<const Fragment> fragments);
/// A block that follows those of the runs, at `data`.
void append_block(std::vector<BlockRun>& runs, Index block, const std::byte* data);
/// Complete blocks put together from sorted fragments, one after another in `memory`. Throws as
/// complete_blocks.
std::vector<BlockRun> assemble_blocks(std::span<const TensorInfo> tensors, const BlockTable& table,
                                      std::span<const Fragment> fragments, RoundMemory& memory);

}  // namespace cartan::store
