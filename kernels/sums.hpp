// Sums over blocks, along the canonical tree, over parts and over rows.
// The contracts are in cartan/device/ops.hpp; spans lie in device memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "cartan/device/ops.hpp"
#include "scratch.hpp"

namespace cartan::kernels {

using device::ConstMatrix;
using device::ConstVector;
using device::GradientView;
using device::Matrix;
using device::SequenceShape;
using device::Vector;

void square_sums(ConstVector x, std::span<double> sums, cudaStream_t stream);
/// values and merges lie in host memory and are free when the call returns.
void tree_sum(std::span<const float* const> values, std::span<const int> merges, float* out, Index count,
              const Scratch& scratch, cudaStream_t stream);
void sum_parts(ConstMatrix stacked, Index parts, ConstMatrix residual, Matrix out, cudaStream_t stream);
/// Leaf of sequence s: the column sums of its rows of x.
void fold_columns(ConstMatrix x, SequenceShape shape, const GradientView& sums, const Scratch& scratch,
                  cudaStream_t stream);
/// flag is set to 1 if an element is not finite, and else left.
void find_nonfinite(ConstMatrix x, std::int32_t* flag, cudaStream_t stream);

}  // namespace cartan::kernels
