// The loss over the vocabulary, or over a part of it.
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

void cross_entropy(ConstMatrix logits, std::span<const std::int32_t> targets, Vector row_loss, Matrix dlogits,
                   const float* scale, cudaStream_t stream);
void cross_entropy_stats(ConstMatrix logits, std::span<const std::int32_t> targets, Index first,
                         Vector row_max, Vector row_sum, Vector target_logit, cudaStream_t stream);
void cross_entropy_combine(ConstMatrix stacked, Index parts, Vector row_max, Vector row_sum,
                           Vector target_logit, cudaStream_t stream);
void cross_entropy_finish(ConstMatrix logits, std::span<const std::int32_t> targets, Index first,
                          ConstVector row_max, ConstVector row_sum, ConstVector target_logit, Vector row_loss,
                          Matrix dlogits, const float* scale, cudaStream_t stream);

}  // namespace cartan::kernels
