// From column sums of pieces of sequences to the slots of a gradient: the second half of every sum over the
// rows of a micro-batch. The first half cuts each sequence into pieces, as many for each, and writes the sums
// of a piece's rows; here the pieces of a sequence are added up to its leaf, and the leaves are folded.
#pragma once

#include <algorithm>

#include "fold.cuh"

namespace cartan::kernels {

/// Pieces of the rows of one sequence. The cut depends on the sequence's rows alone, hence so do the bits.
struct Pieces {
  Index rows = 0;   ///< of a sequence
  Index size = 0;   ///< rows of a piece; the last one may be short
  Index count = 0;  ///< of a sequence

  /// At least `smallest` rows a piece, at most 256 pieces.
  static Pieces of(Index rows, Index smallest) {
    constexpr Index kMost = 256;
    const Index size = std::max(smallest, (rows + kMost - 1) / kMost);
    return {rows, size, (rows + size - 1) / size};
  }
};

inline constexpr int kFoldColumns = 32, kFoldLanes = 8;

/// pieces [sequences, count, stride]: a block folds 32 columns. Eight threads share the pieces of a column:
/// lane l adds up pieces l, l + 8, ..., and lane 0 adds the lanes in order. Reads every piece once.
template <int kLanes>
__global__ void __launch_bounds__(kFoldColumns* kLanes)
    fold_pieces_kernel(const float* pieces, int count, Index stride, Index columns, Index first_column,
                       const __grid_constant__ Fold fold) {
  __shared__ float room[Fold::kMaxDepth * kFoldColumns * kLanes];
  __shared__ float of_lane[kLanes][kFoldColumns];
  const int lane = static_cast<int>(threadIdx.x) / kFoldColumns;
  const int column_here = static_cast<int>(threadIdx.x) % kFoldColumns;
  const Index column = static_cast<Index>(blockIdx.x) * kFoldColumns + column_here;
  const bool inside = column < columns;
  FoldStack stack(fold, first_column + column, room);
  for (int leaf = 0; leaf < fold.leaves; ++leaf) {
    float sum = 0.0f;
    if (inside) {
      const float* value = pieces + (static_cast<Index>(leaf) * count + lane) * stride + column;
#pragma unroll 4
      for (int piece = lane; piece < count; piece += kLanes, value += kLanes * stride) sum += *value;
    }
    of_lane[lane][column_here] = sum;
    __syncthreads();
    if (lane == 0 && inside) {
      for (int i = 1; i < kLanes; ++i) sum += of_lane[i][column_here];
      stack.push(sum);
    }
    __syncthreads();
  }
  if (lane == 0 && inside) stack.finish();
}

inline void fold_pieces(const char* name, const float* pieces, Index count, Index stride, Index columns,
                        Index first_column, const Fold& fold, cudaStream_t stream) {
  launch(name, fold_pieces_kernel<kFoldLanes>, {blocks_for(columns, kFoldColumns), kFoldColumns * kFoldLanes},
         stream, pieces, static_cast<int>(count), stride, columns, first_column, fold);
}

}  // namespace cartan::kernels
