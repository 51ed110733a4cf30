// Tiles of 16-bit rows in shared memory and their products on tensor cores, for the attention kernels of bf16
// and fp16. A tile's rows are padded by 16 bytes, so that the eight rows of an 8x8 matrix lie in different
// banks; channels behind head_dim are zeros.
#pragma once

#include <cstring>

#include <warp/math.cuh>
#include <warp/mma.cuh>

#include "attention_base.cuh"

namespace cartan::kernels::attention {

/// Elements from row to row of a tile of kD channels.
template <int kD>
inline constexpr int kPitch = kD + 8;

__device__ __forceinline__ unsigned bits_of(__nv_bfloat162 pair) {
  unsigned bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}
__device__ __forceinline__ unsigned bits_of(__half2 pair) {
  unsigned bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}
/// Two elements of a fragment, rounded to nearest even.
template <class T>
__device__ __forceinline__ unsigned pair_of(float lower, float upper) {
  if constexpr (std::is_same_v<T, bf16>) {
    return bits_of(__floats2bfloat162_rn(lower, upper));
  } else {
    return bits_of(__floats2half2_rn(lower, upper));
  }
}

/// Starts to load rows 0 ... kRows - 1 of a tile; source(row) is where head_dim elements lie, nullptr for a
/// row of zeros. `packed`: all of it can be moved in packs, head_dim too; they are there after commit, wait
/// and a barrier. Else the elements are there after a barrier.
template <int kRows, int kD, class T, class Source>
__device__ __forceinline__ void fetch(T* tile, bool packed, int head_dim, const Source& source) {
  constexpr int kPacks = kD / kPack<T>;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kPacks; i += static_cast<int>(blockDim.x)) {
    const int row = i / kPacks, channel = i % kPacks * kPack<T>;
    T* const to = tile + row * kPitch<kD> + channel;
    const T* const from = source(row);
    if (packed && from != nullptr && channel < head_dim) {
      warp::cp_async16(to, from + channel);
      continue;
    }
    Pack<T> pack;
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) {
      pack.at[j] = from != nullptr && channel + j < head_dim ? from[channel + j] : from_float<T>(0.0f);
    }
    store_pack(to, pack);
  }
}

/// The address that this lane gives for the fragment of a [16, 16] left operand, rows `tile`.
template <int kD, class T>
__device__ __forceinline__ const T* left_address(const T* tile, int lane) {
  return tile + lane % 16 * kPitch<kD> + lane / 16 * 8;
}
/// For two right operands [16 channels, 8] whose columns are the tile's rows 0-7 and 8-15.
template <int kD, class T>
__device__ __forceinline__ const T* right_address(const T* tile, int lane) {
  return tile + (lane % 8 + lane / 16 * 8) * kPitch<kD> + lane / 8 % 2 * 8;
}

/// sums[m][n] += A_m B_n over the channels: rows of A are rows 16 m ... of `left`, columns of B_n are rows 8
/// n ... of `right`.
template <class T, int kD, int kRowTiles, int kColTiles>
__device__ __forceinline__ void multiply_rows(float (&sums)[kRowTiles][kColTiles][4], const T* left,
                                              const T* right, int lane) {
  const T* const left_lane = left_address<kD>(left, lane);
  const T* const right_lane = right_address<kD>(right, lane);
#pragma unroll 4  // more would need registers
  for (int channel = 0; channel < kD; channel += 16) {
    unsigned a[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) warp::ldmatrix(a[m], left_lane + m * 16 * kPitch<kD> + channel);
#pragma unroll
    for (int n = 0; n < kColTiles; n += 2) {
      unsigned b[4];
      warp::ldmatrix(b, right_lane + n * 8 * kPitch<kD> + channel);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        warp::mma_16x8x16<T>(sums[m][n], a[m], {b[0], b[1]});
        warp::mma_16x8x16<T>(sums[m][n + 1], a[m], {b[2], b[3]});
      }
    }
  }
}

/// The fragment of a left operand from sums[16, 16] in fp32: a result becomes an operand without leaving its
/// registers.
template <class T>
__device__ __forceinline__ void as_left(unsigned (&a)[4], const float (&lower)[4], const float (&upper)[4]) {
  a[0] = pair_of<T>(lower[0], lower[1]);
  a[1] = pair_of<T>(lower[2], lower[3]);
  a[2] = pair_of<T>(upper[0], upper[1]);
  a[3] = pair_of<T>(upper[2], upper[3]);
}

/// sums[m][n] += A_m B_n with A_m [16, 8 kDepthTiles] in fp32 registers, B_n [8 kDepthTiles, 8] = columns 8 n
/// ... of the rows of `right`.
template <class T, int kD, int kRowTiles, int kDepthTiles, int kColTiles>
__device__ __forceinline__ void multiply_columns(float (&sums)[kRowTiles][kColTiles][4],
                                                 const float (&left)[kRowTiles][kDepthTiles][4],
                                                 const T* right, int lane) {
  const T* const right_lane = left_address<kD>(right, lane);
#pragma unroll
  for (int depth = 0; depth < kDepthTiles; depth += 2) {
    unsigned a[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) as_left<T>(a[m], left[m][depth], left[m][depth + 1]);
#pragma unroll
    for (int n = 0; n < kColTiles; n += 2) {
      unsigned b[4];
      warp::ldmatrix_transposed(b, right_lane + depth * 8 * kPitch<kD> + n * 8);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        warp::mma_16x8x16<T>(sums[m][n], a[m], {b[0], b[1]});
        warp::mma_16x8x16<T>(sums[m][n + 1], a[m], {b[2], b[3]});
      }
    }
  }
}

template <int kRowTiles, int kColTiles>
__device__ __forceinline__ void clear(float (&sums)[kRowTiles][kColTiles][4]) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int n = 0; n < kColTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[m][n][i] = 0.0f;
}

/// Row of a fragment's elements 0, 1 (half 0) or 2, 3 (half 1), and column of an element.
__device__ __forceinline__ int fragment_row(int lane, int half) { return lane / 4 + half * 8; }
__device__ __forceinline__ int fragment_column(int lane, int i) { return lane % 4 * 2 + i % 2; }

}  // namespace cartan::kernels::attention
