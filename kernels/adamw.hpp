// The optimizer update.
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

void adamw(Vector master, ConstVector gradient, Vector exp_avg, Vector exp_avg_sq, Vector compute,
           const device::AdamWStep& step, const device::UpdateDecision* decision, cudaStream_t stream);

}  // namespace cartan::kernels
