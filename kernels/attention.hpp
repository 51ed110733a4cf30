// Flash attention.
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

void attention_forward(const device::AttentionShape& shape, ConstMatrix q, ConstMatrix k, ConstMatrix v,
                       std::span<const std::int32_t> document_start, Matrix out, Vector log_sum_exp,
                       cudaStream_t stream);
void attention_backward(const device::AttentionShape& shape, ConstMatrix q, ConstMatrix k, ConstMatrix v,
                        ConstMatrix out, ConstVector log_sum_exp,
                        std::span<const std::int32_t> document_start, ConstMatrix dout, Matrix dq,
                        bool accumulate_dq, Matrix dk, Matrix dv, bool accumulate_dkv, const Scratch& scratch,
                        cudaStream_t stream);
void attention_merge(Matrix out_sum, Vector lse_sum, ConstMatrix out, ConstVector log_sum_exp, Index head_dim,
                     cudaStream_t stream);

}  // namespace cartan::kernels
