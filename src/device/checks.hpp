// The shapes that each operation asks for (cartan/device/ops.hpp), checked by every device before it
// enqueues. A shape that does not fit is a defect of the caller: InternalError with the operation and both
// sizes.
#pragma once

#include "cartan/device/ops.hpp"

namespace cartan::device::check {

void embedding_forward(std::span<const std::int32_t> ids, const ConstMatrix& table, Index first,
                       const Matrix& out);
void embedding_backward(std::span<const std::int32_t> ids, const ConstMatrix& dout, SequenceShape shape,
                        Index first, Index vocab, const GradientView& dtable);
void rmsnorm_forward(const ConstMatrix& x, const ConstVector& weight, const Matrix& y, const Vector& inv_rms);
void rmsnorm_backward(const ConstMatrix& x, const ConstVector& weight, const ConstVector& inv_rms,
                      const ConstMatrix& dy, const Matrix& dx, SequenceShape shape,
                      const GradientView& dweight);
void to_fp8(const ConstMatrix& x, const Matrix& codes, bool transposed, const Fp8Scale& scale);
void linear_forward(const ConstMatrix& x, const ConstMatrix& w, const ConstVector& bias, const Matrix& y,
                    SequenceShape shape);
void linear_backward_input(const ConstMatrix& dy, const ConstMatrix& w, const Matrix& dx,
                           SequenceShape shape);
void linear_backward_weight(const ConstMatrix& dy, const ConstMatrix& x, SequenceShape shape,
                            const GradientView& dw, const GradientView& dbias);
void column_sums(const ConstMatrix& dy, SequenceShape shape, const GradientView& dbias);
void rope(const Matrix& x, Index head_dim, std::span<const std::int32_t> positions,
          const ConstMatrix& cosines, const ConstMatrix& sines);
void attention_forward(const AttentionShape& shape, const ConstMatrix& q, const ConstMatrix& k,
                       const ConstMatrix& v, std::span<const std::int32_t> document_start, const Matrix& out,
                       const Vector& log_sum_exp);
void attention_backward(const AttentionShape& shape, const ConstMatrix& q, const ConstMatrix& k,
                        const ConstMatrix& v, const ConstMatrix& out, const ConstVector& log_sum_exp,
                        std::span<const std::int32_t> document_start, const ConstMatrix& dout,
                        const Matrix& dq, const Matrix& dk, const Matrix& dv);
void attention_merge(const Matrix& out_sum, const Vector& lse_sum, const ConstMatrix& out,
                     const ConstVector& log_sum_exp, Index head_dim);
void swiglu_forward(const ConstMatrix& gate_up, const Matrix& y);
void swiglu_backward(const ConstMatrix& gate_up, const ConstMatrix& dy, const Matrix& dgate_up,
                     const Matrix& y);
void cross_entropy(const ConstMatrix& logits, std::span<const std::int32_t> targets, const Vector& row_loss,
                   const Matrix& dlogits);
void cross_entropy_stats(const ConstMatrix& logits, std::span<const std::int32_t> targets, Index first,
                         const Vector& row_max, const Vector& row_sum, const Vector& target_logit);
void cross_entropy_combine(const ConstMatrix& stacked, Index parts, const Vector& row_max,
                           const Vector& row_sum, const Vector& target_logit);
void cross_entropy_finish(const ConstMatrix& logits, std::span<const std::int32_t> targets, Index first,
                          const ConstVector& row_max, const ConstVector& row_sum,
                          const ConstVector& target_logit, const Vector& row_loss, const Matrix& dlogits);
void adamw(const Vector& master, const ConstVector& gradient, const Vector& exp_avg, const Vector& exp_avg_sq,
           const Vector& compute);
void square_sums(const ConstVector& x, std::span<double> sums);
void exact_words(const char* op, std::span<const std::int64_t> words);
void tree_sum(std::span<const float* const> values, std::span<const int> merges, Index count);
void sum_parts(const ConstMatrix& stacked, Index parts, const ConstMatrix& residual, const Matrix& out);
void dropout(const ConstMatrix& x, std::span<const std::int32_t> rows, const DropoutRule& rule,
             const Matrix& out);
void add(const Vector& y, const ConstVector& x);
void subtract(const Vector& y, const ConstVector& x);
void copy(const ConstMatrix& x, const Matrix& y);
void orthonormalise_rows(const Matrix& x);
void take_largest(const Vector& x, const Vector& values, std::span<const std::uint32_t> indices);
void penalise_repeats(const Vector& logits, std::span<const std::int32_t> ids, float penalty);
void scatter_add(const Vector& y, const ConstVector& values, std::span<const std::uint32_t> indices);
void sample(const ConstMatrix& logits, std::span<const double> uniforms, const SamplingRule& rule,
            std::span<const std::int32_t> tokens);

}  // namespace cartan::device::check
