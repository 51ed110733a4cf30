// Operations of compressed gradients.
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

void orthonormalise_rows(Matrix x, const Scratch& scratch, cudaStream_t stream);
void take_largest(Vector x, Vector values, std::span<std::uint32_t> indices, const Scratch& scratch,
                  cudaStream_t stream);
void scatter_add(Vector y, ConstVector values, std::span<const std::uint32_t> indices, cudaStream_t stream);

}  // namespace cartan::kernels
