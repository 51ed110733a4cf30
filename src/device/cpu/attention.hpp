// Blocked causal attention; the contract is in cartan/device/ops.hpp.
#pragma once

#include "cartan/device/ops.hpp"
#include "device/cpu/context.hpp"

namespace cartan::device::cpu {

void attention_forward(const Context& context, const AttentionShape& shape, ConstMatrix q, ConstMatrix k,
                       ConstMatrix v, std::span<const std::int32_t> document_start, Matrix out,
                       Vector log_sum_exp);

void attention_backward(const Context& context, const AttentionShape& shape, ConstMatrix q, ConstMatrix k,
                        ConstMatrix v, ConstMatrix out, ConstVector log_sum_exp,
                        std::span<const std::int32_t> document_start, ConstMatrix dout, Matrix dq,
                        bool accumulate_dq, Matrix dk, Matrix dv, bool accumulate_dkv);

}  // namespace cartan::device::cpu
