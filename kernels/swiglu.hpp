// The gated activation.
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

void swiglu_forward(ConstMatrix gate_up, Matrix y, cudaStream_t stream);
void swiglu_backward(ConstMatrix gate_up, ConstMatrix dy, Matrix dgate_up, Matrix y, cudaStream_t stream);

}  // namespace cartan::kernels
