// Rotary position embedding.
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

void rope(Matrix x, Index head_dim, std::span<const std::int32_t> positions, ConstMatrix cosines,
          ConstMatrix sines, bool inverse, cudaStream_t stream);

}  // namespace cartan::kernels
