// How attention cuts its work. The queries of one kv head are rows: row r of a sequence is query r / group
// read by head r % group of the heads that share the kv head, so that they share its keys as well. A tile is
// 48 rows, the lanes of its matrices; a block is 64 keys, from a position that is a multiple of 64: keys are
// numbered by position, whichever of them are here. No row's arithmetic depends on the other rows of its tile
// or on which blocks were skipped as invisible, hence not on the threads, the batch or the cache.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "cartan/core/error.hpp"
#include "cartan/core/narrow.hpp"
#include "cartan/device/ops.hpp"
#include "device/cpu/context.hpp"

namespace cartan::device::cpu {

inline constexpr Index kTileRows = 48;  ///< a multiple of every vector width, and 3 vectors of AVX-512
inline constexpr Index kKeyBlock = 64;
inline constexpr Index kKeyStep = 8;  ///< visible key ranges are widened to multiples of it
inline constexpr Index kLaneStep = 16;
inline constexpr Index kPanelTiles = 24;  ///< at most, of one task

/// One call, as its tasks see it. What a call lacks stays empty.
struct AttentionCall {
  AttentionShape shape;
  std::span<const std::int32_t> document_start;
  ConstMatrix q, k, v;

  Index group() const { return shape.heads / shape.kv_heads; }
  Index rows() const { return shape.q_length * group(); }  ///< of one kv head of one sequence
  Index tiles() const { return ceil_div(rows(), kTileRows); }
  Index key_end() const { return shape.k_first + shape.k_length; }
  Index first_block() const { return shape.k_first / kKeyBlock * kKeyBlock; }  ///< position of its first key
  Index key_blocks() const { return ceil_div(key_end() - first_block(), kKeyBlock); }
  Index width() const { return round_up(shape.head_dim, kLaneStep); }  ///< columns of packed rows
};

/// Throws InternalError that names the query whose document does not start at a key that it may see.
void check_document_starts(const AttentionCall& call);

/// A sequence and a kv head.
struct HeadGroup {
  Index sequence = 0, kv_head = 0;
};
inline HeadGroup head_group(const AttentionCall& call, Index index) {
  return {index / call.shape.kv_heads, index % call.shape.kv_heads};
}

/// Walks the rows of a tile without a division a row.
class RowWalk {
 public:
  RowWalk(const AttentionCall& call, HeadGroup at, Index first_row)
      : call_(call), at_(at), query_(first_row / call.group()), member_(first_row % call.group()) {}
  void next() {
    if (++member_ == call_.group()) member_ = 0, ++query_;
  }
  Index query() const { return query_; }
  Index token() const { return at_.sequence * call_.shape.q_length + query_; }
  Index head() const { return at_.kv_head * call_.group() + member_; }
  /// Where the row starts in a [queries, heads * head_dim] view, in elements.
  Index offset(Index stride) const { return token() * stride + head() * call_.shape.head_dim; }
  /// Its index in log_sum_exp.
  Index statistic() const { return token() * call_.shape.heads + head(); }

 private:
  const AttentionCall& call_;
  HeadGroup at_;
  Index query_, member_;
};

/// Where the key at position `key` starts in a [keys, kv_heads * head_dim] view, in elements.
inline Index key_offset(const AttentionCall& call, HeadGroup at, Index key, Index stride) {
  return (at.sequence * call.shape.k_length + key - call.shape.k_first) * stride +
         at.kv_head * call.shape.head_dim;
}

/// The keys of block [block, block + kKeyBlock) that are here, relative to the block.
struct PresentKeys {
  Index begin, end;
};
inline PresentKeys present_keys(const AttentionCall& call, Index block) {
  return {std::max<Index>(call.shape.k_first - block, 0), std::min(kKeyBlock, call.key_end() - block)};
}

/// Which keys the rows of one tile see.
struct TileKeys {
  Index first_row = 0;
  Index rows = 0;                              ///< in use; the other lanes see nothing
  Index lanes = 0;                             ///< rows, rounded up to whole vectors
  Index first_key = 0, end_key = 0;            ///< seen by some row
  Index common_first_key = 0, common_end = 0;  ///< seen by every row
  /// Row i sees the keys start[i] ... last[i], of those that are here; none where start > last.
  alignas(64) std::array<std::int32_t, kTileRows> start{}, last{};

  bool sees_keys(Index row) const {
    return start[static_cast<std::size_t>(row)] <= last[static_cast<std::size_t>(row)];
  }

  /// The keys of block [block, block + kKeyBlock) to compute: a range relative to the block, empty where no
  /// row sees any.
  struct Range {
    Index begin = 0, end = 0;
    bool masked = false;  ///< some row does not see all of them
    bool empty() const { return begin >= end; }
    Index size() const { return end - begin; }
  };
  Range visible(Index block) const {
    Range range;
    range.begin = std::max<Index>(first_key - block, 0) / kKeyStep * kKeyStep;
    range.end = round_up(std::clamp<Index>(end_key - block, 0, kKeyBlock), kKeyStep);
    range.masked = block + range.begin < common_first_key || block + range.end > common_end;
    return range;
  }
};
TileKeys tile_keys(const AttentionCall& call, HeadGroup at, Index tile);

/// Hands out pieces of a thread's scratch, each on its own cache lines.
class ScratchCarver {
 public:
  explicit ScratchCarver(std::byte* base) : base_(base) {}
  template <class T = float>
  T* take(Index count) {
    T* piece = reinterpret_cast<T*>(base_ + used_);
    used_ += static_cast<std::size_t>(round_up(count * static_cast<Index>(sizeof(T)), 64));
    if (used_ > kScratchBytes) {
      throw InternalError("attention needs more than the {} bytes of scratch of a thread: head_dim too large",
                          kScratchBytes);
    }
    return piece;
  }

 private:
  std::byte* base_;
  std::size_t used_ = 0;
};

/// Tiles that one task keeps at once, so that they share packed keys: as many as fit in `cache_bytes`, and
/// few enough to give every thread some tasks.
inline Index tiles_per_panel(const AttentionCall& call, Index tile_bytes, Index cache_bytes, int threads) {
  const Index all_tiles = call.shape.sequences * call.shape.kv_heads * call.tiles();
  const Index fair = all_tiles / (Index{4} * threads);
  return std::clamp<Index>(std::min(cache_bytes / tile_bytes, fair), 1, kPanelTiles);
}

}  // namespace cartan::device::cpu
