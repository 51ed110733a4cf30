// Look-up of the rows of a table, and its gradient.
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

void embedding_forward(std::span<const std::int32_t> ids, ConstMatrix table, Index first, Matrix out,
                       cudaStream_t stream);
void embedding_backward(std::span<const std::int32_t> ids, ConstMatrix dout, SequenceShape shape, Index first,
                        Index vocab, const GradientView& dtable, const Scratch& scratch, cudaStream_t stream);

}  // namespace cartan::kernels
