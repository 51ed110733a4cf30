// The gradients of attention in bf16 and fp16 on tensor cores. Blocks that own rows sum dQ over the keys,
// blocks that own keys sum dK and dV over the rows, both in ascending order, in fp32 registers that start as
// what accumulates. P and dS go from the result of one product to the operand of the next in registers.
//
// A product sums 16 keys or 16 rows at once, hence fp32 gradients of runs have the bits of one call where the
// runs are cut at positions that are multiples of 16 (of keys from the sequence's start, of queries from the
// first one). scale = m 2^e with m in [1, 2): m goes into dS before it is rounded to 16 bits, 2^e is exact
// and waits for the end, so that dS of fp16 stays in range.
//
// FLOPs a visible pair of query and key: 6 C for dQ and 8 C for dK and dV, C = head_dim (2 C more than with
// one kernel that adds dQ atomically, whose bits would change from run to run); 10 C and 12 C with C > 128,
// where two blocks share the channels of the sums. Expected are 45-55 % of the mma.sync peak with C = 128 on
// sm_80, less on sm_90 and sm_100 (attention_forward.cu, also on how operands and results move).
#pragma once

#include <cmath>

#include "attention_mma.cuh"

namespace cartan::kernels::attention {

inline constexpr int kGradientWarps = 4, kGradientThreads = kGradientWarps * kWarp;
inline constexpr int kOwned = 64;   ///< rows or keys of a block, 16 a warp
inline constexpr int kPassed = 32;  ///< keys or rows that pass by at once

/// Two tiles that stay and two stages of two tiles that pass.
template <int kD>
inline constexpr unsigned kGradientBytes = (2 * kOwned + 4 * kPassed) * kPitch<kD> * 2;

/// scale = mantissa / up: results are summed `up` times too large.
struct Scale {
  float log2, mantissa, up, down;

  explicit Scale(float scale) : log2(scale * kLog2E) {
    int exponent = 0;
    mantissa = 2.0f * std::frexp(scale, &exponent);
    down = std::ldexp(1.0f, exponent - 1);
    up = std::ldexp(1.0f, 1 - exponent);
  }
};

/// s becomes P and dp becomes dS, one element of each.
__device__ __forceinline__ void differentiate(float& s, float& dp, bool visible, float log2_sum, float delta,
                                              const Scale& scale) {
  s = visible ? warp::exp2_fast(fmaf(s, scale.log2, -log2_sum)) : 0.0f;
  dp = visible ? s * (dp - delta) * scale.mantissa : 0.0f;
}

/// kParts blocks own a tile of rows, each kD / kParts channels of its sums.
template <class T, int kD, int kParts>
__global__ void __launch_bounds__(kGradientThreads, 2)
    attention_dq_kernel(const Work work, const Heads<T> q, const Heads<T> k, const Heads<T> v,
                        const Heads<T> dout, const Statistics statistics, const Result dq, const Scale scale,
                        const bool packed) {
  constexpr int kColTiles = kPassed / 8, kStage = 2 * kPassed * kPitch<kD>, kChannels = kD / kParts;
  T* const q_tile = warp::dynamic_shared<T>();
  T* const dout_tile = q_tile + kOwned * kPitch<kD>;
  T* const stages = dout_tile + kOwned * kPitch<kD>;
  __shared__ int room[2 * kGradientWarps];
  const HeadGroup at(work);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int first_channel = static_cast<int>(blockIdx.x) % kParts * kChannels;
  const int first_row = static_cast<int>(gridDim.x - 1 - blockIdx.x) / kParts * kOwned;
  const int warp_offset = warp * 16 * kPitch<kD>;

  const auto fetch_rows = [&](T* tile, const Heads<T>& from) {
    fetch<kOwned, kD>(tile, packed, work.head_dim, [&](int row) {
      return at.has_row(first_row + row) ? from.data + at.query_element(first_row + row, from.stride)
                                         : nullptr;
    });
  };
  const auto fetch_keys = [&](T* tile, const Heads<T>& from, int first_key) {
    fetch<kPassed, kD>(tile, packed, work.head_dim, [&](int row) {
      const int key = first_key + row;
      return at.has_key(key) ? from.data + at.key_element(key, from.stride) : nullptr;
    });
  };
  const auto fetch_stage = [&](int stage, int first_key) {
    fetch_keys(stages + stage * kStage, k, first_key);
    fetch_keys(stages + stage * kStage + kStage / 2, v, first_key);
    warp::cp_async_commit();
  };
  fetch_rows(q_tile, q);
  fetch_rows(dout_tile, dout);
  warp::cp_async_commit();

  KeyRange visible[2];
  float log2_sum[2], delta[2];
  int rows[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    rows[half] = first_row + warp * 16 + fragment_row(lane, half);
    visible[half] = at.visible(rows[half]);
    log2_sum[half] = statistics.log2_sum(at, rows[half]);
    delta[half] = statistics.mean(at, rows[half]);
  }
  const WarpKeys mine =
      warp_keys({min(visible[0].begin, visible[1].begin), max(visible[0].end, visible[1].end)},
                {max(visible[0].begin, visible[1].begin), min(visible[0].end, visible[1].end)});
  const KeyRange keys = block_keys(mine.some, room);

  float sums[1][kChannels / 8][4];
  clear(sums);
  const auto for_each_result = [&](const auto& f) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!at.has_row(rows[half])) continue;
      const Index element = at.query_element(rows[half], dq.stride);
#pragma unroll
      for (int n = 0; n < kChannels / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int channel = first_channel + n * 8 + fragment_column(lane, i);
          if (channel < work.head_dim) f(sums[0][n][2 * half + i], element + channel);
        }
      }
    }
  };
  if (dq.accumulate) {
    for_each_result([&](float& sum, Index element) { sum = dq.template get<T>(element) * scale.up; });
  }

  int first_key = keys.begin / kPassed * kPassed;
  if (first_key < keys.end) fetch_stage(0, first_key);
  for (int stage = 0; first_key < keys.end; first_key += kPassed, stage ^= 1) {
    warp::cp_async_wait<0>();
    __syncthreads();  // this stage is there, the other one has been read
    if (first_key + kPassed < keys.end) fetch_stage(stage ^ 1, first_key + kPassed);
    if (!mine.touches(first_key, kPassed)) continue;
    const T* const k_tile = stages + stage * kStage;
    const T* const v_tile = k_tile + kStage / 2;
    float s[1][kColTiles][4], ds[1][kColTiles][4];
    clear(s);
    clear(ds);
    multiply_rows<T, kD>(s, q_tile + warp_offset, k_tile, lane);
    multiply_rows<T, kD>(ds, dout_tile + warp_offset, v_tile, lane);
    const bool masked = mine.masks(first_key, kPassed);
#pragma unroll
    for (int n = 0; n < kColTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool sees = !masked || visible[i / 2].has(first_key + n * 8 + fragment_column(lane, i));
        differentiate(s[0][n][i], ds[0][n][i], sees, log2_sum[i / 2], delta[i / 2], scale);
      }
    }
    multiply_columns<T, kD>(sums, ds, k_tile + first_channel, lane);
  }
  warp::cp_async_wait<0>();  // also where the rows see nothing
  for_each_result([&](float& sum, Index element) { dq.template set<T>(element, sum * scale.down); });
}

/// What the block knows of the rows in a stage.
struct PassingRows {
  float log2_sum[kPassed], delta[kPassed];
  KeyRange visible[kPassed];
  WarpKeys keys;  ///< of all of them
};

/// kParts blocks own a tile of keys, each kD / kParts channels of its sums.
template <class T, int kD, int kParts>
__global__ void __launch_bounds__(kGradientThreads, 2)
    attention_dkv_kernel(const Work work, const Heads<T> q, const Heads<T> k, const Heads<T> v,
                         const Heads<T> dout, const Statistics statistics, const Result dk, const Result dv,
                         const Scale scale, const bool packed) {
  constexpr int kColTiles = kPassed / 8, kStage = 2 * kPassed * kPitch<kD>, kChannels = kD / kParts;
  T* const k_tile = warp::dynamic_shared<T>();
  T* const v_tile = k_tile + kOwned * kPitch<kD>;
  T* const stages = v_tile + kOwned * kPitch<kD>;
  __shared__ PassingRows passing[2];
  __shared__ int room[kGradientWarps];
  const HeadGroup at(work);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int first_channel = static_cast<int>(blockIdx.x) % kParts * kChannels;
  // The first keys are seen by most queries: they go first.
  const int first_key = work.k_first + static_cast<int>(blockIdx.x) / kParts * kOwned;
  const int warp_key = first_key + warp * 16, warp_offset = warp * 16 * kPitch<kD>;

  const auto fetch_keys = [&](T* tile, const Heads<T>& from) {
    fetch<kOwned, kD>(tile, packed, work.head_dim, [&](int row) {
      const int key = first_key + row;
      return at.has_key(key) ? from.data + at.key_element(key, from.stride) : nullptr;
    });
  };
  const auto fetch_rows = [&](T* tile, const Heads<T>& from, int first_row) {
    fetch<kPassed, kD>(tile, packed, work.head_dim, [&](int row) {
      return at.has_row(first_row + row) ? from.data + at.query_element(first_row + row, from.stride)
                                         : nullptr;
    });
  };
  const auto fetch_stage = [&](int stage, int first_row) {
    fetch_rows(stages + stage * kStage, q, first_row);
    fetch_rows(stages + stage * kStage + kStage / 2, dout, first_row);
    warp::cp_async_commit();
    if (warp != 0) return;
    static_assert(kPassed == kWarp);
    PassingRows& rows = passing[stage];
    const KeyRange visible = at.visible(first_row + lane);
    rows.visible[lane] = visible;
    rows.log2_sum[lane] = statistics.log2_sum(at, first_row + lane);
    rows.delta[lane] = statistics.mean(at, first_row + lane);
    const WarpKeys keys = warp_keys(visible, visible);
    if (lane == 0) rows.keys = keys;
  };
  fetch_keys(k_tile, k);
  fetch_keys(v_tile, v);
  warp::cp_async_commit();

  // Earlier queries stand before these keys, and from some query on documents start after them.
  const int first_query = max(first_key - work.q_first - work.first_query, 0);
  const int last_key = min(first_key + kOwned, work.k_end()) - 1;
  const int end_row = (last_query(at, first_query, last_key, room) + 1) * work.group;
  int first_row = first_query * work.group / kPassed * kPassed;

  float dk_sums[1][kChannels / 8][4], dv_sums[1][kChannels / 8][4];
  clear(dk_sums);
  clear(dv_sums);
  const auto for_each_result = [&](const auto& f) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = warp_key + fragment_row(lane, half);
      if (!at.has_key(key)) continue;
      const Index of_k = at.key_element(key, dk.stride), of_v = at.key_element(key, dv.stride);
#pragma unroll
      for (int n = 0; n < kChannels / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int channel = first_channel + n * 8 + fragment_column(lane, i);
          if (channel < work.head_dim)
            f(dk_sums[0][n][2 * half + i], of_k + channel, dv_sums[0][n][2 * half + i], of_v + channel);
        }
      }
    }
  };
  if (dk.accumulate) {
    for_each_result([&](float& dk_sum, Index of_k, float& dv_sum, Index of_v) {
      dk_sum = dk.template get<T>(of_k) * scale.up;
      dv_sum = dv.template get<T>(of_v);
    });
  }

  if (first_row < end_row) fetch_stage(0, first_row);
  for (int stage = 0; first_row < end_row; first_row += kPassed, stage ^= 1) {
    warp::cp_async_wait<0>();
    __syncthreads();  // this stage is there, the other one has been read
    if (first_row + kPassed < end_row) fetch_stage(stage ^ 1, first_row + kPassed);
    const PassingRows& rows = passing[stage];
    if (!rows.keys.touches(warp_key, 16)) continue;
    const T* const q_tile = stages + stage * kStage;
    const T* const dout_tile = q_tile + kStage / 2;
    // Transposed: keys are rows.
    float p[1][kColTiles][4], ds[1][kColTiles][4];
    clear(p);
    clear(ds);
    multiply_rows<T, kD>(p, k_tile + warp_offset, q_tile, lane);
    multiply_rows<T, kD>(ds, v_tile + warp_offset, dout_tile, lane);
    const bool masked = rows.keys.masks(warp_key, 16);
#pragma unroll
    for (int n = 0; n < kColTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = n * 8 + fragment_column(lane, i), key = warp_key + fragment_row(lane, i / 2);
        const bool sees = !masked || rows.visible[row].has(key);
        differentiate(p[0][n][i], ds[0][n][i], sees, rows.log2_sum[row], rows.delta[row], scale);
      }
    }
    multiply_columns<T, kD>(dv_sums, p, dout_tile + first_channel, lane);
    multiply_columns<T, kD>(dk_sums, ds, q_tile + first_channel, lane);
  }
  warp::cp_async_wait<0>();  // also where no row sees the keys
  for_each_result([&](float& dk_sum, Index of_k, float& dv_sum, Index of_v) {
    dk.template set<T>(of_k, dk_sum * scale.down);
    dv.template set<T>(of_v, dv_sum);
  });
}

template <class T, int kD>
void backward_mma(const Work& work, const Heads<T>& q, const Heads<T>& k, const Heads<T>& v,
                  const Heads<T>& dout, const Statistics& statistics, const Result& dq, const Result& dk,
                  const Result& dv, cudaStream_t stream) {
  constexpr int kParts = kD <= 128 ? 1 : 2;
  const bool packed = heads_are_packed({&q, &k, &v, &dout}, work.head_dim);
  const Scale scale(work.scale);
  const Grid of_rows{work.grid(kParts * static_cast<int>(blocks_for(work.rows(), kOwned))), kGradientThreads,
                     kGradientBytes<kD>};
  launch("attention_dq", attention_dq_kernel<T, kD, kParts>, of_rows, stream, work, q, k, v, dout, statistics,
         dq, scale, packed);
  const Grid of_keys{work.grid(kParts * static_cast<int>(blocks_for(work.k_length, kOwned))),
                     kGradientThreads, kGradientBytes<kD>};
  launch("attention_dkv", attention_dkv_kernel<T, kD, kParts>, of_keys, stream, work, q, k, v, dout,
         statistics, dk, dv, scale, packed);
}

}  // namespace cartan::kernels::attention
