// RMS normalization.
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

void rmsnorm_forward(ConstMatrix x, ConstVector weight, float eps, Matrix y, Vector inv_rms,
                     cudaStream_t stream);
void rmsnorm_backward(ConstMatrix x, ConstVector weight, ConstVector inv_rms, ConstMatrix dy, Matrix dx,
                      bool accumulate, SequenceShape shape, const GradientView& dweight,
                      const Scratch& scratch, cudaStream_t stream);

}  // namespace cartan::kernels
