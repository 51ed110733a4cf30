// Dropout by counter-based random numbers.
// The contracts are in cartan/device/ops.hpp; spans lie in device memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "cartan/device/ops.hpp"

namespace cartan::kernels {

using device::ConstMatrix;
using device::DropoutRule;
using device::Matrix;

void dropout(ConstMatrix x, std::span<const std::int32_t> rows, const DropoutRule& rule, Matrix out,
             cudaStream_t stream);

}  // namespace cartan::kernels
