// What decides on an update: the exact sum of squares, the norm, whether it is finite, and the loss scale.
// The contracts are in cartan/device/ops.hpp; spans lie in device memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "cartan/device/ops.hpp"

namespace cartan::kernels {

void exact_sum(std::span<const double> values, std::span<std::int64_t> words, cudaStream_t stream);
void decide_update(std::span<const std::int64_t> words, const device::UpdateRule& rule,
                   const float* loss_scale, device::UpdateDecision* decision, cudaStream_t stream);
void update_loss_scale(const device::UpdateDecision* decision, const device::LossScaleRule& rule,
                       device::LossScaleState* state, float* of_loss, cudaStream_t stream);

}  // namespace cartan::kernels
