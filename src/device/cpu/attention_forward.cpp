// Attention, forward: O = softmax(scale Q K^T) V for one panel of query tiles a task, block of keys by block
// of keys with a running maximum m and sum l (Dao 2023, arXiv:2307.08691). Scores are kept in units of log 2:
// Q is scaled by scale * log2(e) once, P = 2^(S - m).
// FLOPs: 4 C for each visible pair of query and key; the keys are packed once for all tiles of a panel.
#include <cmath>

#include "device/cpu/attention.hpp"
#include "device/cpu/attention_layout.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/attention_forward.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

#include "device/cpu/attention_block.hpp"

#ifndef CARTAN_ATTENTION_FORWARD_ONCE
#define CARTAN_ATTENTION_FORWARD_ONCE
namespace cartan::device::cpu {
namespace {

struct ForwardCall : AttentionCall {
  Matrix out;
  Vector log_sum_exp;
  Index panel_tiles = 1, panels = 1;
};

/// What one tile carries from key block to key block. Lanes are its query rows.
struct ForwardTile {
  TileKeys* keys;
  float* queries;               // [width, 48], scaled
  float* out;                   // [width, 48], sum of P V
  float *maximum, *sum, *fade;  // [48]; fade is what the old sums are multiplied by

  static Index bytes(const AttentionCall& call) {
    return static_cast<Index>(sizeof(float)) * 2 * call.width() * kTileRows;
  }
};

}  // namespace
}  // namespace cartan::device::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace cartan::device::cpu::HWY_NAMESPACE {
namespace {

/// The maximum before any key, and the score of a key that a row does not see.
constexpr float kNoMaximum = -1e30f;

void start_tile(const ForwardCall& call, HeadGroup at, Index index, float* rows, ForwardTile& tile) {
  *tile.keys = tile_keys(call, at, index);
  const Index width = call.width();
  load_query_rows(call, at, *tile.keys, call.q, rows);
  scale_all(rows, kTileRows * width, call.shape.scale * 1.44269504f);
  transpose(rows, width, kTileRows, width, tile.queries, kTileRows);
  std::fill(tile.out, tile.out + width * kTileRows, 0.0f);
  std::fill(tile.maximum, tile.maximum + kTileRows, kNoMaximum);
  std::fill(tile.sum, tile.sum + kTileRows, 0.0f);
}

/// Turns the scores of keys first_key ... into P and updates maximum and sum. Returns whether the old sums
/// must fade. Maxima and sums run in four chains, key j in chain j % 4, so that their latency is hidden.
template <bool kMasked>
bool soften(ForwardTile& tile, Index first_key, Index count, float* scores) {
  const Floats d;
  const Index lanes = static_cast<Index>(hn::Lanes(d));
  bool fades = false;
  for (Index i = 0; i < tile.keys->lanes; i += lanes) {
    float* const column = scores + i;
    const FloatVec old_maximum = hn::Load(d, tile.maximum + i);
    FloatVec m0 = old_maximum, m1 = old_maximum, m2 = old_maximum, m3 = old_maximum;
    const auto take_maximum = [&](Index j, FloatVec& maximum) HWY_ATTR {
      FloatVec score = hn::Load(d, column + j * kTileRows);
      if constexpr (kMasked) {
        score = hn::IfThenElse(visible_lanes(*tile.keys, i, first_key + j), score, hn::Set(d, kNoMaximum));
      }
      maximum = hn::Max(maximum, score);
    };
    const auto exponentiate = [&](Index j, FloatVec maximum, FloatVec& sum) HWY_ATTR {
      float* const at = column + j * kTileRows;
      FloatVec p = exp2_clamped(hn::Sub(hn::Load(d, at), maximum));
      if constexpr (kMasked) p = hn::IfThenElseZero(visible_lanes(*tile.keys, i, first_key + j), p);
      sum = hn::Add(sum, p);
      hn::Store(p, d, at);
    };
    for (Index j = 0; j < count; j += 4) {
      take_maximum(j, m0);
      take_maximum(j + 1, m1);
      take_maximum(j + 2, m2);
      take_maximum(j + 3, m3);
    }
    const FloatVec maximum = hn::Max(hn::Max(m0, m1), hn::Max(m2, m3));
    FloatVec s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
    for (Index j = 0; j < count; j += 4) {
      exponentiate(j, maximum, s0);
      exponentiate(j + 1, maximum, s1);
      exponentiate(j + 2, maximum, s2);
      exponentiate(j + 3, maximum, s3);
    }
    const FloatVec fade = exp2_clamped(hn::Sub(old_maximum, maximum));
    fades = fades || !hn::AllTrue(d, hn::Eq(old_maximum, maximum));
    const FloatVec sum = hn::Add(hn::Add(s0, s1), hn::Add(s2, s3));
    hn::Store(hn::MulAdd(hn::Load(d, tile.sum + i), fade, sum), d, tile.sum + i);
    hn::Store(maximum, d, tile.maximum + i);
    hn::Store(fade, d, tile.fade + i);
  }
  return fades;
}

/// Multiplies each lane of data [rows, 48] by its factor.
void scale_lanes(float* data, Index rows, Index used_lanes, const float* factor) {
  const Floats d;
  const Index lanes = static_cast<Index>(hn::Lanes(d));
  for (Index i = 0; i < used_lanes; i += lanes) {
    const FloatVec f = hn::Load(d, factor + i);
    for (Index r = 0; r < rows; ++r) {
      float* const at = data + r * kTileRows + i;
      hn::Store(hn::Mul(hn::Load(d, at), f), d, at);
    }
  }
}

void add_key_block(const ForwardCall& call, ForwardTile& tile, Index block, const float* k, const float* v,
                   float* scores) {
  const TileKeys::Range range = tile.keys->visible(block);
  if (range.empty()) return;
  const Index width = call.width(), head_dim = call.shape.head_dim, lanes = tile.keys->lanes;
  product<kTileRows>(range.size(), lanes, head_dim, {k + range.begin * width, width, 1}, tile.queries,
                     kTileRows, scores, kTileRows, false);
  const bool fades = range.masked ? soften<true>(tile, block + range.begin, range.size(), scores)
                                  : soften<false>(tile, block + range.begin, range.size(), scores);
  if (fades) scale_lanes(tile.out, head_dim, lanes, tile.fade);
  product<kTileRows>(head_dim, lanes, range.size(), {v + range.begin * width, 1, width}, scores, kTileRows,
                     tile.out, kTileRows, true);
}

void finish_tile(const ForwardCall& call, HeadGroup at, ForwardTile& tile, float* rows) {
  const Index width = call.width();
  float* const lse = static_cast<float*>(call.log_sum_exp.data);
  RowWalk row(call, at, tile.keys->first_row);
  for (Index i = 0; i < tile.keys->rows; ++i, row.next()) {
    const bool sees_keys = tile.keys->sees_keys(i);
    if (lse != nullptr) {
      lse[row.statistic()] = sees_keys ? tile.maximum[i] * 0.693147181f + std::log(tile.sum[i]) : -HUGE_VALF;
    }
    tile.fade[i] = sees_keys ? 1.0f / tile.sum[i] : 0.0f;
  }
  std::fill(tile.fade + tile.keys->rows, tile.fade + kTileRows, 0.0f);
  scale_lanes(tile.out, width, tile.keys->lanes, tile.fade);
  transpose(tile.out, kTileRows, width, kTileRows, rows, width);
  store_query_rows(call, at, *tile.keys, rows, call.out);
}

void forward_panel(const ForwardCall& call, Index task, std::byte* scratch) {
  // The last panels see most keys: they go first, so that no thread ends up alone with one.
  const Index panel = call.panels - 1 - task % call.panels;
  const HeadGroup at = head_group(call, task / call.panels);
  const Index first_tile = panel * call.panel_tiles;
  const Index count = std::min(call.panel_tiles, call.tiles() - first_tile);
  const Index width = call.width();

  ScratchCarver carver(scratch);
  float* const k = carver.take(kKeyBlock * width);
  float* const v = carver.take(kKeyBlock * width);
  float* const scores = carver.take(kKeyBlock * kTileRows);
  float* const rows = carver.take(kTileRows * width);
  std::array<ForwardTile, kPanelTiles> tiles;
  Index first_key = call.key_end(), end_key = 0;
  for (Index t = 0; t < count; ++t) {
    ForwardTile& tile = tiles[static_cast<std::size_t>(t)];
    tile = {carver.take<TileKeys>(1), carver.take(width * kTileRows), carver.take(width * kTileRows),
            carver.take(kTileRows),   carver.take(kTileRows),         carver.take(kTileRows)};
    start_tile(call, at, first_tile + t, rows, tile);
    first_key = std::min(first_key, tile.keys->first_key);
    end_key = std::max(end_key, tile.keys->end_key);
  }
  for (Index block = first_key / kKeyBlock * kKeyBlock; block < end_key; block += kKeyBlock) {
    load_key_rows(call, at, block, call.k, k);
    load_key_rows(call, at, block, call.v, v);
    if (block + kKeyBlock < end_key) {
      prefetch_key_rows(call, at, block + kKeyBlock, call.k);
      prefetch_key_rows(call, at, block + kKeyBlock, call.v);
    }
    for (Index t = 0; t < count; ++t) {
      add_key_block(call, tiles[static_cast<std::size_t>(t)], block, k, v, scores);
    }
  }
  for (Index t = 0; t < count; ++t) finish_tile(call, at, tiles[static_cast<std::size_t>(t)], rows);
}

}  // namespace
}  // namespace cartan::device::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cartan::device::cpu {
HWY_EXPORT(forward_panel);

void attention_forward(const Context& context, const AttentionShape& shape, ConstMatrix q, ConstMatrix k,
                       ConstMatrix v, std::span<const std::int32_t> document_start, Matrix out,
                       Vector log_sum_exp) {
  ForwardCall call{{shape, document_start, q, k, v}, out, log_sum_exp};
  if (q.rows == 0) return;
  check_document_starts(call);
  constexpr Index kPanelCacheBytes = Index{320} << 10;
  call.panel_tiles = tiles_per_panel(call, ForwardTile::bytes(call), kPanelCacheBytes, context.pool.size());
  call.panels = ceil_div(call.tiles(), call.panel_tiles);
  context.pool.run(shape.sequences * shape.kv_heads * call.panels, [&](Index task, int thread) {
    HWY_DYNAMIC_DISPATCH(forward_panel)(call, task, context.scratch<std::byte>(thread));
  });
}

}  // namespace cartan::device::cpu
#endif
