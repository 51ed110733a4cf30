// The choice of the next token.
// The contract is in cartan/device/ops.hpp; spans lie in device memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "cartan/device/ops.hpp"

namespace cartan::kernels {

void penalise_repeats(device::Vector logits, std::span<const std::int32_t> ids, float penalty,
                      cudaStream_t stream);
void sample(device::ConstMatrix logits, std::span<const double> uniforms, const device::SamplingRule& rule,
            std::span<std::int32_t> tokens, cudaStream_t stream);

}  // namespace cartan::kernels
