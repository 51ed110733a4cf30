// Rounding to the 8-bit types of matrix products.
// The contract is in cartan/device/ops.hpp.
#pragma once

#include <cuda_runtime_api.h>

#include "cartan/device/ops.hpp"

namespace cartan::kernels {

using device::ConstMatrix;
using device::Fp8Scale;
using device::Matrix;

void to_fp8(ConstMatrix x, Matrix codes, bool transposed, const Fp8Scale& scale, cudaStream_t stream);

}  // namespace cartan::kernels
