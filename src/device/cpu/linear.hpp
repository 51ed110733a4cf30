// Products with a parameter, cut into tiles; the contracts are in cartan/device/ops.hpp. The cuts depend on
// the sequence length and the parameter's shape only, so a row of a sequence, and a leaf of a gradient, have
// the same bits whatever the number of sequences and threads.
#pragma once

#include "device/cpu/context.hpp"
#include "device/cpu/gemm.hpp"

namespace cartan::device::cpu {

void linear_forward(const Context& context, Gemm& gemm, ConstMatrix x, ConstMatrix w, ConstVector bias,
                    Matrix y, bool accumulate, SequenceShape shape);
void linear_backward_input(const Context& context, Gemm& gemm, ConstMatrix dy, ConstMatrix w, Matrix dx,
                           bool accumulate, SequenceShape shape);
void linear_backward_weight(const Context& context, Gemm& gemm, ConstMatrix dy, ConstMatrix x,
                            SequenceShape shape, const GradientView& dw, const GradientView& dbias);
void column_sums(const Context& context, ConstMatrix dy, SequenceShape shape, const GradientView& dbias);
void to_fp8(const Context& context, ConstMatrix x, Matrix codes, bool transposed, const Fp8Scale& scale);

}  // namespace cartan::device::cpu
