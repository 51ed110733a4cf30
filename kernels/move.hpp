// Element-wise sums, copies and casts.
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

void add(Vector y, ConstVector x, cudaStream_t stream);
void subtract(Vector y, ConstVector x, cudaStream_t stream);
void fill_zero(Vector y, cudaStream_t stream);
void copy(ConstMatrix x, Matrix y, cudaStream_t stream);

}  // namespace cartan::kernels
