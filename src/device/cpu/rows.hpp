// The operations that go row by row, or element by element, shared among threads; the contracts are in
// cartan/device/ops.hpp.
#pragma once

#include "cartan/device/ops.hpp"
#include "device/cpu/context.hpp"

namespace cartan::device::cpu {

void embedding_forward(const Context& context, std::span<const std::int32_t> ids, ConstMatrix table,
                       Index first, Matrix out);
void embedding_backward(const Context& context, std::span<const std::int32_t> ids, ConstMatrix dout,
                        SequenceShape shape, Index first, Index vocab, const GradientView& dtable);
void rmsnorm_forward(const Context& context, ConstMatrix x, ConstVector weight, float eps, Matrix y,
                     Vector inv_rms);
void rmsnorm_backward(const Context& context, ConstMatrix x, ConstVector weight, ConstVector inv_rms,
                      ConstMatrix dy, Matrix dx, bool accumulate, SequenceShape shape,
                      const GradientView& dweight);
void rope(const Context& context, Matrix x, Index head_dim, std::span<const std::int32_t> positions,
          ConstMatrix cosines, ConstMatrix sines, bool inverse);
void attention_merge(const Context& context, Matrix out_sum, Vector lse_sum, ConstMatrix out,
                     ConstVector log_sum_exp, Index head_dim);
void swiglu_forward(const Context& context, ConstMatrix gate_up, Matrix y);
void swiglu_backward(const Context& context, ConstMatrix gate_up, ConstMatrix dy, Matrix dgate_up, Matrix y);
void cross_entropy(const Context& context, ConstMatrix logits, std::span<const std::int32_t> targets,
                   Vector row_loss, Matrix dlogits, const float* scale);
void cross_entropy_stats(const Context& context, ConstMatrix logits, std::span<const std::int32_t> targets,
                         Index first, Vector row_max, Vector row_sum, Vector target_logit);
void cross_entropy_combine(const Context& context, ConstMatrix stacked, Index parts, Vector row_max,
                           Vector row_sum, Vector target_logit);
void cross_entropy_finish(const Context& context, ConstMatrix logits, std::span<const std::int32_t> targets,
                          Index first, ConstVector row_max, ConstVector row_sum, ConstVector target_logit,
                          Vector row_loss, Matrix dlogits, const float* scale);
void adamw(const Context& context, Vector master, ConstVector gradient, Vector exp_avg, Vector exp_avg_sq,
           Vector compute, const AdamWStep& step, const UpdateDecision* decision);
void square_sums(const Context& context, ConstVector x, std::span<double> sums);
void tree_sum(const Context& context, std::span<const float* const> values, std::span<const int> merges,
              float* out, Index count);
void sum_parts(const Context& context, ConstMatrix stacked, Index parts, ConstMatrix residual, Matrix out);
void dropout(const Context& context, ConstMatrix x, std::span<const std::int32_t> rows,
             const DropoutRule& rule, Matrix out);
void add(const Context& context, Vector y, ConstVector x);
void subtract(const Context& context, Vector y, ConstVector x);
void fill_zero(const Context& context, Vector y);
void copy(const Context& context, ConstMatrix x, Matrix y);
bool all_finite(const Context& context, ConstMatrix x);

}  // namespace cartan::device::cpu
