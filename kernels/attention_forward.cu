// Attention, forward, in bf16 and fp16 on tensor cores: O = softmax(scale Q K^T) V with an online softmax
// over tiles of keys (Dao 2023, arXiv:2307.08691). A block owns a tile of rows (query, head of the group), a
// warp 16 or 32 of them; V arrives while the scores are computed, the next K while they are multiplied with
// V.
//
// Tiles of keys start at multiples of their length from the sequence's start, and a tile that a row does not
// see leaves its sums as they are: bits do not depend on the cut into runs. FLOPs: 4 C a visible pair of
// query and key, C = head_dim. Bytes: Q and O once, K and V once for each tile of rows, from L2: 4 C n /
// kRows a row and element of n keys, that is over 100 FLOPs a byte of L2. Bound by tensor cores and by exp2
// (one for 4 C FLOPs): expected are 50-60 % of the mma peak with C = 128 on sm_80, and of what mma.sync
// reaches on sm_90 and sm_100 (about 60 % of what their own instructions reach), a third less with C = 64.
// Operands move in packs, side by side and without bank conflicts. O goes from fragments to memory element by
// element, in requests of four times the sectors: once a row, against hundreds of products with it.
#include "attention_mma.cuh"

namespace cartan::kernels {
namespace {

using namespace attention;

constexpr int kWarps = 4;

/// The shape of tiles for kD channels.
template <int kD>
struct ForwardTiles {
  static constexpr int kRowTiles = kD <= 64 ? 2 : 1;  ///< of 16 rows, a warp
  static constexpr int kRows = kWarps * 16 * kRowTiles;
  static constexpr int kKeys = kD <= 128 ? 64 : 32;
  static constexpr unsigned kBytes = (kRows + 2 * kKeys) * kPitch<kD> * 2;
};

/// Scores become P, relative to the new maximum of their row; the old sums fade. maximum is in units of
/// log 2.
template <int kColTiles, int kOutTiles>
__device__ __forceinline__ void soften(float (&s)[kColTiles][4], float (&out)[kOutTiles][4],
                                       float (&maximum)[2], float (&sum)[2], float scale) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float largest = -INFINITY;
#pragma unroll
    for (int n = 0; n < kColTiles; ++n) largest = fmaxf(largest, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
    const float before = maximum[half];
    maximum[half] = fmaxf(before, largest * scale);
    // A row that has seen nothing yet.
    const float shift = maximum[half] == -INFINITY ? 0.0f : maximum[half];
    float seen = 0.0f;
#pragma unroll
    for (int n = 0; n < kColTiles; ++n) {
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        s[n][i] = warp::exp2_fast(fmaf(s[n][i], scale, -shift));
        seen += s[n][i];
      }
    }
    const float fade = warp::exp2_fast(before - shift);
    sum[half] = fmaf(sum[half], fade, seen);
#pragma unroll
    for (int n = 0; n < kOutTiles; ++n) {
      out[n][2 * half] *= fade;
      out[n][2 * half + 1] *= fade;
    }
  }
}

template <class T, int kD>
__global__ void __launch_bounds__(kWarps* kWarp, 2)
    attention_forward_kernel(const Work work, const Heads<T> q, const Heads<T> k, const Heads<T> v,
                             const Result out, float* log_sum_exp, const bool packed) {
  using Tiles = ForwardTiles<kD>;
  constexpr int kRowTiles = Tiles::kRowTiles, kKeys = Tiles::kKeys, kColTiles = kKeys / 8;
  T* const q_tile = warp::dynamic_shared<T>();
  T* const k_tile = q_tile + Tiles::kRows * kPitch<kD>;
  T* const v_tile = k_tile + kKeys * kPitch<kD>;
  __shared__ int room[2 * kWarps];
  const HeadGroup at(work);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  // The last rows see most keys: they go first.
  const int first_row = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Tiles::kRows;
  const int warp_row = warp * 16 * kRowTiles;

  const auto fetch_keys = [&](T* tile, const Heads<T>& from, int first_key) {
    fetch<kKeys, kD>(tile, packed, work.head_dim, [&](int row) {
      const int key = first_key + row;
      return at.has_key(key) ? from.data + at.key_element(key, from.stride) : nullptr;
    });
    warp::cp_async_commit();
  };
  fetch<Tiles::kRows, kD>(q_tile, packed, work.head_dim, [&](int row) {
    return at.has_row(first_row + row) ? q.data + at.query_element(first_row + row, q.stride) : nullptr;
  });
  warp::cp_async_commit();

  KeyRange visible[kRowTiles][2];
  KeyRange lane_some{INT_MAX, 0}, lane_all{0, INT_MAX};
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const KeyRange keys = at.visible(first_row + warp_row + m * 16 + fragment_row(lane, half));
      visible[m][half] = keys;
      lane_some = {min(lane_some.begin, keys.begin), max(lane_some.end, keys.end)};
      lane_all = {max(lane_all.begin, keys.begin), min(lane_all.end, keys.end)};
    }
  }
  const WarpKeys mine = warp_keys(lane_some, lane_all);
  const KeyRange keys = block_keys(mine.some, room);

  float sums[kRowTiles][kD / 8][4], maximum[kRowTiles][2], sum[kRowTiles][2];
  clear(sums);
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
    maximum[m][0] = maximum[m][1] = -INFINITY;
    sum[m][0] = sum[m][1] = 0.0f;
  }
  const float scale = work.scale * kLog2E;

  int first_key = keys.begin / kKeys * kKeys;
  if (first_key < keys.end) fetch_keys(k_tile, k, first_key);
  for (; first_key < keys.end; first_key += kKeys) {
    warp::cp_async_wait<0>();
    __syncthreads();  // K is there, the V before it has been read
    fetch_keys(v_tile, v, first_key);
    const bool touched = mine.touches(first_key, kKeys);
    float s[kRowTiles][kColTiles][4];
    if (touched) {
      clear(s);
      multiply_rows<T, kD>(s, q_tile + warp_row * kPitch<kD>, k_tile, lane);
      if (mine.masks(first_key, kKeys)) {
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
          for (int n = 0; n < kColTiles; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
              if (!visible[m][i / 2].has(first_key + n * 8 + fragment_column(lane, i)))
                s[m][n][i] = -INFINITY;
      }
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) soften(s[m], sums[m], maximum[m], sum[m], scale);
    }
    warp::cp_async_wait<0>();
    __syncthreads();  // V is there, K has been read
    if (first_key + kKeys < keys.end) fetch_keys(k_tile, k, first_key + kKeys);
    if (touched) multiply_columns<T, kD>(sums, s, v_tile, lane);
  }
  warp::cp_async_wait<0>();  // also where the rows see nothing

#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float total = sum[m][half];
      total += __shfl_xor_sync(kAllLanes, total, 1);
      total += __shfl_xor_sync(kAllLanes, total, 2);
      const int row = first_row + warp_row + m * 16 + fragment_row(lane, half);
      if (!at.has_row(row)) continue;
      const bool sees_keys = visible[m][half].begin < visible[m][half].end;
      const float factor = sees_keys ? 1.0f / total : 0.0f;
      const Index element = at.query_element(row, out.stride);
#pragma unroll
      for (int n = 0; n < kD / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int channel = n * 8 + fragment_column(lane, i);
          if (channel < work.head_dim)
            out.template set<T>(element + channel, sees_keys ? sums[m][n][2 * half + i] * factor : 0.0f);
        }
      }
      if (log_sum_exp != nullptr && lane % 4 == 0)
        log_sum_exp[at.statistic(row)] = sees_keys ? maximum[m][half] * kLn2 + logf(total) : -INFINITY;
    }
  }
}

template <class T, int kD>
void forward_of(const Work& work, const ConstMatrix& q, const ConstMatrix& k, const ConstMatrix& v,
                const Result& out, float* log_sum_exp, cudaStream_t stream) {
  using Tiles = ForwardTiles<kD>;
  const Heads<T> qs(q), ks(k), vs(v);
  const Grid grid{work.grid(static_cast<int>(blocks_for(work.rows(), Tiles::kRows))), kWarps * kWarp,
                  Tiles::kBytes};
  launch("attention_forward", attention_forward_kernel<T, kD>, grid, stream, work, qs, ks, vs, out,
         log_sum_exp, heads_are_packed({&qs, &ks, &vs}, work.head_dim));
}

}  // namespace

void attention_forward(const device::AttentionShape& shape, ConstMatrix q, ConstMatrix k, ConstMatrix v,
                       std::span<const std::int32_t> document_start, Matrix out, Vector log_sum_exp,
                       cudaStream_t stream) {
  if (q.rows == 0) return;
  const Work work(shape, document_start);
  const Result result(out);
  float* const lse = static_cast<float*>(log_sum_exp.data);
  if (q.dtype == DType::f32) return forward_fp32(work, q, k, v, result, lse, stream);
  dispatch_heads(q.dtype, work.head_dim, [&](auto element, auto channels) {
    forward_of<decltype(element), channels>(work, q, k, v, result, lse, stream);
  });
}

}  // namespace cartan::kernels
