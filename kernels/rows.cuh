// How the row-wise kernels walk over matrices whose rows start anywhere: a thread works on a chunk of
// neighbouring columns, moved in 16-byte packs where every row starts at a multiple of 16 bytes (or in half a
// pack, where other operands have elements twice as large), and else element by element. All ways give a
// thread the same elements, so a result has the same bits.
#pragma once

#include <algorithm>

#include "base.cuh"

namespace cartan::kernels {

/// row[first ... first + kCount) as floats; zeros from `cols` on.
template <bool kPacked, int kCount, class T>
__device__ __forceinline__ void load_chunk(const T* row, Index first, Index cols, float (&values)[kCount]) {
  if constexpr (kPacked) {
    if (first + kCount <= cols) {
      if constexpr (kCount == kPack<T> / 2) {
        const HalfPack<T> half_pack = load_half_pack(row + first);
#pragma unroll
        for (int j = 0; j < kCount; ++j) values[j] = to_float(half_pack.at[j]);
      } else {
        static_assert(kCount % kPack<T> == 0);
#pragma unroll
        for (int i = 0; i < kCount; i += kPack<T>) {
          const Pack<T> pack = load_pack(row + first + i);
#pragma unroll
          for (int j = 0; j < kPack<T>; ++j) values[i + j] = to_float(pack.at[j]);
        }
      }
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = first + i < cols ? to_float(row[first + i]) : 0.0f;
}

template <bool kPacked, int kCount, class T>
__device__ __forceinline__ void store_chunk(T* row, Index first, Index cols, const float (&values)[kCount]) {
  if constexpr (kPacked) {
    if (first + kCount <= cols) {
      if constexpr (kCount == kPack<T> / 2) {
        HalfPack<T> half_pack;
#pragma unroll
        for (int j = 0; j < kCount; ++j) half_pack.at[j] = from_float<T>(values[j]);
        store_half_pack(row + first, half_pack);
      } else {
        static_assert(kCount % kPack<T> == 0);
#pragma unroll
        for (int i = 0; i < kCount; i += kPack<T>) {
          Pack<T> pack;
#pragma unroll
          for (int j = 0; j < kPack<T>; ++j) pack.at[j] = from_float<T>(values[i + j]);
          store_pack(row + first + i, pack);
        }
      }
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    if (first + i < cols) row[first + i] = from_float<T>(values[i]);
}

/// Threads of a block of element-wise kernels.
inline constexpr int kRowThreads = 256;

/// A grid over rows x chunks. A block covers 2^columns_log2 chunks of each of its rows.
struct RowGrid {
  Grid grid;
  int columns_log2 = 0;
};

inline RowGrid row_grid(Index rows, Index chunks) {
  RowGrid result;
  while (result.columns_log2 < 8 && (Index{1} << result.columns_log2) < chunks) ++result.columns_log2;
  const Index columns = Index{1} << result.columns_log2;
  result.grid = {dim3(blocks_for(rows, kRowThreads / columns), blocks_for(chunks, columns)), kRowThreads};
  return result;
}

/// The row and the chunk of this thread; they may lie beyond the matrix.
struct RowPlace {
  Index row, chunk;
  __device__ explicit RowPlace(int columns_log2)
      : row(static_cast<Index>(blockIdx.x) * (kRowThreads >> columns_log2) +
            (static_cast<int>(threadIdx.x) >> columns_log2)),
        chunk((static_cast<Index>(blockIdx.y) << columns_log2) +
              (static_cast<int>(threadIdx.x) & ((1 << columns_log2) - 1))) {}
};

/// Calls f with a compile-time bool.
template <class F>
void with_bool(bool value, const F& f) {
  if (value) {
    f(std::true_type{});
  } else {
    f(std::false_type{});
  }
}

}  // namespace cartan::kernels
