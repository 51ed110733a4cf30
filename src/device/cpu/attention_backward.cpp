// Attention, backward: with P = softmax(S), S = scale Q K^T, D = rowsum(dO * O) (Dao 2023, arXiv:2307.08691)
//   dV = P^T dO,   dS = P * (dO V^T - D),   dQ = scale dS K,   dK = scale dS^T Q,
// where P is recomputed block by block from the saved log-sum-exp. O and the log-sum-exp are those of all
// keys, so that the keys at hand may be any part of them.
//
// Two ways to cut the work, with the same bits, since each sum runs over keys or over query tiles in
// ascending order in both, from 0 or from the gradient that accumulates:
//   whole heads  a task is a kv head of a sequence: 5 products a block, 10 C FLOPs a visible pair; dK and dV
//                of the whole head are accumulated in scratch, or in the outputs where these are fp32
//   two passes   tasks are panels of query tiles for dQ, then strips of keys for dK and dV: 7 products
#include "device/cpu/attention.hpp"
#include "device/cpu/attention_layout.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/attention_backward.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

#include "device/cpu/attention_block.hpp"

#ifndef CARTAN_ATTENTION_BACKWARD_ONCE
#define CARTAN_ATTENTION_BACKWARD_ONCE
namespace cartan::device::cpu {
namespace {

inline constexpr Index kStripBlocks = 4;  ///< key blocks of a task of the second pass

struct BackwardCall : AttentionCall {
  ConstMatrix out, dout;
  ConstVector log_sum_exp;
  Matrix dq, dk, dv;
  bool accumulate_dq, accumulate_dkv;
  Index panel_tiles = 1;

  Index panels() const { return ceil_div(tiles(), panel_tiles); }
  Index strips() const { return ceil_div(key_blocks(), kStripBlocks); }
};

/// What one tile holds. Lanes are its query rows.
struct BackwardTile {
  TileKeys* keys;
  float *queries_t, *dout_t;  // [width, 48], scaled for P = 2^(S - lse) and for dS
  float *queries, *dout;      // [48, width]
  float* dq;                  // [width, 48]
  float *lse, *delta;         // [48], log2 of the sum; D * scale

  static Index bytes(const AttentionCall& call) {
    const Index floats = 5 * call.width() * kTileRows + 2 * kTileRows;
    return floats * static_cast<Index>(sizeof(float)) + round_up(sizeof(TileKeys), 64);
  }
  static BackwardTile carve(const AttentionCall& call, ScratchCarver& carver) {
    const Index size = call.width() * kTileRows;
    return {carver.take<TileKeys>(1), carver.take(size), carver.take(size),      carver.take(size),
            carver.take(size),        carver.take(size), carver.take(kTileRows), carver.take(kTileRows)};
  }
};

/// A block of keys, rows of [64, width], with the gradients being summed.
struct KeyBlock {
  Index first_key;
  float *k, *v, *dk, *dv;
};

/// P and dS of a block and a tile, [64 keys, 48]; rows [48, width] for conversions.
struct BackwardWork {
  float *p, *ds, *rows;

  static BackwardWork carve(const AttentionCall& call, ScratchCarver& carver) {
    return {carver.take(kKeyBlock * kTileRows), carver.take(kKeyBlock * kTileRows),
            carver.take(call.width() * kTileRows)};
  }
};

/// Floats that the sums of dK and dV of a whole head take.
Index whole_head_floats(const AttentionCall& call) {
  return 2 * call.key_blocks() * kKeyBlock * call.width();
}

bool whole_head_fits_scratch(const BackwardCall& call) {
  const Index floats = whole_head_floats(call) + 4 * kKeyBlock * call.width() + 2 * kKeyBlock * kTileRows +
                       call.width() * kTileRows;
  return floats * static_cast<Index>(sizeof(float)) + call.panel_tiles * BackwardTile::bytes(call) <=
         static_cast<Index>(kScratchBytes);
}

}  // namespace
}  // namespace cartan::device::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace cartan::device::cpu::HWY_NAMESPACE {
namespace {

constexpr float kLog2E = 1.44269504f;

void load_tile(const BackwardCall& call, HeadGroup at, const BackwardWork& work, BackwardTile& tile) {
  const Index width = call.width(), size = width * kTileRows;
  // D of each lane, summed over the channels in order; dq is not in use yet and holds O^T.
  load_query_rows(call, at, *tile.keys, call.out, work.rows);
  transpose(work.rows, width, kTileRows, width, tile.dq, kTileRows);
  load_query_rows(call, at, *tile.keys, call.dout, tile.dout);
  transpose(tile.dout, width, kTileRows, width, tile.dout_t, kTileRows);
  scale_all(tile.dout_t, size, call.shape.scale);
  const Floats d;
  const Index lanes = static_cast<Index>(hn::Lanes(d));
  for (Index i = 0; i < kTileRows; i += lanes) {
    FloatVec sum = hn::Zero(d);
    for (Index c = 0; c < call.shape.head_dim; ++c) {
      const Index element = c * kTileRows + i;
      sum = hn::MulAdd(hn::Load(d, tile.dout_t + element), hn::Load(d, tile.dq + element), sum);
    }
    hn::Store(sum, d, tile.delta + i);
  }

  load_query_rows(call, at, *tile.keys, call.q, tile.queries);
  transpose(tile.queries, width, kTileRows, width, tile.queries_t, kTileRows);
  scale_all(tile.queries_t, size, call.shape.scale * kLog2E);
  std::fill(tile.lse, tile.lse + kTileRows, 0.0f);
  RowWalk row(call, at, tile.keys->first_row);
  for (Index i = 0; i < tile.keys->rows; ++i, row.next()) {
    tile.lse[i] = static_cast<const float*>(call.log_sum_exp.data)[row.statistic()] * kLog2E;
  }
}

/// S becomes P, dP becomes dS, both [count keys, 48].
template <bool kMasked>
void differentiate_scores(const BackwardTile& tile, Index first_key, Index count, float* p, float* ds) {
  const Floats d;
  const Index lanes = static_cast<Index>(hn::Lanes(d));
  for (Index i = 0; i < tile.keys->lanes; i += lanes) {
    const FloatVec lse = hn::Load(d, tile.lse + i), delta = hn::Load(d, tile.delta + i);
    for (Index j = 0; j < count; ++j) {
      const Index element = j * kTileRows + i;
      FloatVec probability = exp2_clamped(hn::Sub(hn::Load(d, p + element), lse));
      if constexpr (kMasked) {
        probability = hn::IfThenElseZero(visible_lanes(*tile.keys, i, first_key + j), probability);
      }
      hn::Store(probability, d, p + element);
      hn::Store(hn::Mul(probability, hn::Sub(hn::Load(d, ds + element), delta)), d, ds + element);
    }
  }
}

enum class Wanted { dq, dk_dv, all };

/// What a tile and a block of keys add to the gradients.
template <Wanted kWanted>
void add_block(const BackwardCall& call, const BackwardTile& tile, const KeyBlock& block,
               const BackwardWork& work) {
  const TileKeys::Range range = tile.keys->visible(block.first_key);
  if (range.empty()) return;
  const Index width = call.width(), head_dim = call.shape.head_dim;
  const Index lanes = tile.keys->lanes, rows = tile.keys->rows, count = range.size();
  const Index begin = range.begin * width;
  product<kTileRows>(count, lanes, head_dim, {block.k + begin, width, 1}, tile.queries_t, kTileRows, work.p,
                     kTileRows, false);
  product<kTileRows>(count, lanes, head_dim, {block.v + begin, width, 1}, tile.dout_t, kTileRows, work.ds,
                     kTileRows, false);
  const Index first_key = block.first_key + range.begin;
  if (range.masked) {
    differentiate_scores<true>(tile, first_key, count, work.p, work.ds);
  } else {
    differentiate_scores<false>(tile, first_key, count, work.p, work.ds);
  }
  if constexpr (kWanted != Wanted::dq) {
    product(count, width, rows, {work.p, kTileRows, 1}, tile.dout, width, block.dv + begin, width, true);
    product(count, width, rows, {work.ds, kTileRows, 1}, tile.queries, width, block.dk + begin, width, true);
  }
  if constexpr (kWanted != Wanted::dk_dv) {
    product<kTileRows>(head_dim, lanes, count, {block.k + begin, 1, width}, work.ds, kTileRows, tile.dq,
                       kTileRows, true);
  }
}

/// What the sum over key blocks starts from.
void start_dq(const BackwardCall& call, HeadGroup at, const BackwardWork& work, BackwardTile& tile) {
  const Index width = call.width();
  if (call.accumulate_dq) {
    load_query_rows(call, at, *tile.keys, call.dq, work.rows);
    transpose(work.rows, width, kTileRows, width, tile.dq, kTileRows);
  } else {
    std::fill(tile.dq, tile.dq + width * kTileRows, 0.0f);
  }
}

void store_dq(const BackwardCall& call, HeadGroup at, const BackwardTile& tile, const BackwardWork& work) {
  transpose(tile.dq, kTileRows, call.width(), kTileRows, work.rows, call.width());
  store_query_rows(call, at, *tile.keys, work.rows, call.dq);
}

/// The tiles of a panel with the keys that some row of it sees.
struct Panel {
  std::array<BackwardTile, kPanelTiles> tiles;
  Index count = 0, first_key = 0, end_key = 0;

  void carve(const BackwardCall& call, ScratchCarver& carver) {
    for (Index t = 0; t < call.panel_tiles; ++t) tile(t) = BackwardTile::carve(call, carver);
  }
  void load(const BackwardCall& call, HeadGroup at, Index index, const BackwardWork& work) {
    const Index first_tile = index * call.panel_tiles;
    count = std::min(call.panel_tiles, call.tiles() - first_tile);
    first_key = call.key_end(), end_key = 0;
    for (Index t = 0; t < count; ++t) {
      *tile(t).keys = tile_keys(call, at, first_tile + t);
      load_tile(call, at, work, tile(t));
      start_dq(call, at, work, tile(t));
      first_key = std::min(first_key, tile(t).keys->first_key);
      end_key = std::max(end_key, tile(t).keys->end_key);
    }
    first_key = first_key / kKeyBlock * kKeyBlock;
  }
  BackwardTile& tile(Index t) { return tiles[static_cast<std::size_t>(t)]; }
};

void load_keys(const BackwardCall& call, HeadGroup at, const KeyBlock& block, Index end_key) {
  load_key_rows(call, at, block.first_key, call.k, block.k);
  load_key_rows(call, at, block.first_key, call.v, block.v);
  if (block.first_key + kKeyBlock < end_key) {
    prefetch_key_rows(call, at, block.first_key + kKeyBlock, call.k);
    prefetch_key_rows(call, at, block.first_key + kKeyBlock, call.v);
  }
}

/// What the sums over query tiles of a block of keys start from.
void start_key_sums(const BackwardCall& call, HeadGroup at, Index block, float* dk, float* dv) {
  if (call.accumulate_dkv) {
    load_key_rows(call, at, block, call.dk, dk);
    load_key_rows(call, at, block, call.dv, dv);
  } else {
    std::fill(dk, dk + kKeyBlock * call.width(), 0.0f);
    std::fill(dv, dv + kKeyBlock * call.width(), 0.0f);
  }
}

void backward_head(const BackwardCall& call, Index task, std::byte* scratch) {
  const HeadGroup at = head_group(call, task);
  const Index width = call.width(), block_size = kKeyBlock * width;
  ScratchCarver carver(scratch);
  const BackwardWork work = BackwardWork::carve(call, carver);
  Panel panel;
  panel.carve(call, carver);
  KeyBlock block{0, carver.take(block_size), carver.take(block_size), carver.take(block_size),
                 carver.take(block_size)};
  // The sums over all panels, [keys, width]; absent where the outputs hold them.
  float* sums = nullptr;
  if (whole_head_fits_scratch(call)) sums = carver.take(whole_head_floats(call));
  const auto dk_sum = [&](Index key) { return sums + (key - call.first_block()) * width; };
  const auto dv_sum = [&](Index key) { return dk_sum(key) + whole_head_floats(call) / 2; };
  for (Index key = call.first_block(); key < call.key_end(); key += kKeyBlock) {
    if (sums != nullptr) {
      start_key_sums(call, at, key, dk_sum(key), dv_sum(key));
    } else if (!call.accumulate_dkv) {
      std::fill(block.dk, block.dk + block_size, 0.0f);
      store_key_rows(call, at, key, block.dk, call.dk);
      store_key_rows(call, at, key, block.dk, call.dv);
    }
  }

  for (Index p = 0; p < call.panels(); ++p) {
    panel.load(call, at, p, work);
    for (Index key = panel.first_key; key < panel.end_key; key += kKeyBlock) {
      block.first_key = key;
      load_keys(call, at, block, panel.end_key);
      if (sums != nullptr) {
        block.dk = dk_sum(key);
        block.dv = dv_sum(key);
      } else {
        load_key_rows(call, at, key, call.dk, block.dk);
        load_key_rows(call, at, key, call.dv, block.dv);
      }
      for (Index t = 0; t < panel.count; ++t) add_block<Wanted::all>(call, panel.tile(t), block, work);
      if (sums == nullptr) {
        store_key_rows(call, at, key, block.dk, call.dk);
        store_key_rows(call, at, key, block.dv, call.dv);
      }
    }
    for (Index t = 0; t < panel.count; ++t) store_dq(call, at, panel.tile(t), work);
  }
  if (sums == nullptr) return;
  for (Index key = call.first_block(); key < call.key_end(); key += kKeyBlock) {
    store_key_rows(call, at, key, dk_sum(key), call.dk);
    store_key_rows(call, at, key, dv_sum(key), call.dv);
  }
}

void backward_panel(const BackwardCall& call, Index task, std::byte* scratch) {
  // The last panels see most keys: they go first, so that no thread ends up alone with one.
  const HeadGroup at = head_group(call, task / call.panels());
  const Index block_size = kKeyBlock * call.width();
  ScratchCarver carver(scratch);
  const BackwardWork work = BackwardWork::carve(call, carver);
  Panel panel;
  panel.carve(call, carver);
  KeyBlock block{0, carver.take(block_size), carver.take(block_size), nullptr, nullptr};
  panel.load(call, at, call.panels() - 1 - task % call.panels(), work);
  for (Index key = panel.first_key; key < panel.end_key; key += kKeyBlock) {
    block.first_key = key;
    load_keys(call, at, block, panel.end_key);
    for (Index t = 0; t < panel.count; ++t) add_block<Wanted::dq>(call, panel.tile(t), block, work);
  }
  for (Index t = 0; t < panel.count; ++t) store_dq(call, at, panel.tile(t), work);
}

void backward_strip(const BackwardCall& call, Index task, std::byte* scratch) {
  const HeadGroup at = head_group(call, task / call.strips());
  const Index begin = call.first_block() + task % call.strips() * kStripBlocks * kKeyBlock;
  const Index end = std::min(begin + kStripBlocks * kKeyBlock, call.key_end());
  const Index block_size = kKeyBlock * call.width();
  ScratchCarver carver(scratch);
  const BackwardWork work = BackwardWork::carve(call, carver);
  BackwardTile tile = BackwardTile::carve(call, carver);
  std::array<KeyBlock, kStripBlocks> blocks;
  Index count = 0;
  for (Index key = begin; key < end; key += kKeyBlock) {
    KeyBlock& block = blocks[static_cast<std::size_t>(count++)];
    block = {key, carver.take(block_size), carver.take(block_size), carver.take(block_size),
             carver.take(block_size)};
    load_keys(call, at, block, end);
    start_key_sums(call, at, key, block.dk, block.dv);
  }
  // Earlier tiles end before the strip.
  const Index first_query = std::max<Index>(begin - call.shape.q_first, 0);
  for (Index t = first_query * call.group() / kTileRows; t < call.tiles(); ++t) {
    *tile.keys = tile_keys(call, at, t);
    if (tile.keys->first_key >= end || tile.keys->end_key <= begin) continue;
    load_tile(call, at, work, tile);
    for (Index b = 0; b < count; ++b) {
      add_block<Wanted::dk_dv>(call, tile, blocks[static_cast<std::size_t>(b)], work);
    }
  }
  for (Index b = 0; b < count; ++b) {
    const KeyBlock& block = blocks[static_cast<std::size_t>(b)];
    store_key_rows(call, at, block.first_key, block.dk, call.dk);
    store_key_rows(call, at, block.first_key, block.dv, call.dv);
  }
}

}  // namespace
}  // namespace cartan::device::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cartan::device::cpu {
HWY_EXPORT(backward_head);
HWY_EXPORT(backward_panel);
HWY_EXPORT(backward_strip);
namespace {

/// Whole heads need 5 products instead of 7, but some threads may be idle in their last round.
bool whole_heads_pay(const BackwardCall& call, int threads) {
  const bool sums_have_room =
      whole_head_fits_scratch(call) || (call.dk.dtype == DType::f32 && call.dv.dtype == DType::f32);
  const Index tasks = call.shape.sequences * call.shape.kv_heads;
  return sums_have_room && 5 * ceil_div(tasks, threads) * threads <= 7 * tasks;
}

}  // namespace

void attention_backward(const Context& context, const AttentionShape& shape, ConstMatrix q, ConstMatrix k,
                        ConstMatrix v, ConstMatrix out, ConstVector log_sum_exp,
                        std::span<const std::int32_t> document_start, ConstMatrix dout, Matrix dq,
                        bool accumulate_dq, Matrix dk, Matrix dv, bool accumulate_dkv) {
  BackwardCall call{
      {shape, document_start, q, k, v}, out, dout, log_sum_exp, dq, dk, dv, accumulate_dq, accumulate_dkv};
  if (q.rows == 0 && k.rows == 0) return;
  check_document_starts(call);

  constexpr Index kPanelCacheBytes = Index{480} << 10;
  const int threads = context.pool.size();
  const Index heads = shape.sequences * shape.kv_heads;
  const auto scratch = [&](int thread) { return context.scratch<std::byte>(thread); };
  call.panel_tiles = tiles_per_panel(call, BackwardTile::bytes(call), kPanelCacheBytes, 1);
  if (whole_heads_pay(call, threads)) {
    context.pool.run(heads, [&](Index task, int thread) {
      HWY_DYNAMIC_DISPATCH(backward_head)(call, task, scratch(thread));
    });
    return;
  }
  call.panel_tiles = tiles_per_panel(call, BackwardTile::bytes(call), kPanelCacheBytes, threads);
  context.pool.run(heads * call.panels(), [&](Index task, int thread) {
    HWY_DYNAMIC_DISPATCH(backward_panel)(call, task, scratch(thread));
  });
  context.pool.run(heads * call.strips(), [&](Index task, int thread) {
    HWY_DYNAMIC_DISPATCH(backward_strip)(call, task, scratch(thread));
  });
}

}  // namespace cartan::device::cpu
#endif
