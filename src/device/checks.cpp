// One table of conditions for all devices.
#include "device/checks.hpp"

#include <cstdint>

#include "cartan/core/error.hpp"
#include "cartan/core/exact_sum.hpp"

namespace cartan::device {

bool fits_fp8(Index length, Index n, Index k, const GradientView& dw) {
  constexpr Index kMultiple = 16, kFloats = 4;
  // A piece of a wgrad on cuda has at least so many rows.
  constexpr Index kMostCols = Index{1} << 18;
  return length > 0 && n > 0 && k > 0 && length % kMultiple == 0 && n % kMultiple == 0 &&
         k % kMultiple == 0 && k <= kMostCols && dw.offset % kFloats == 0;
}

}  // namespace cartan::device

namespace cartan::device::check {
namespace {

void same(const char* op, const char* what, Index found, Index expected) {
  if (found != expected) throw InternalError("{}: {} is {}, expected {}", op, what, found, expected);
}

void same_type(const char* op, const char* what, DType found, DType expected) {
  if (found != expected)
    throw InternalError("{}: {} is {}, expected {}", op, what, name_of(found), name_of(expected));
}

void computes_in(const char* op, const char* what, DType dtype) {
  if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16) {
    throw InternalError("{}: {} is {}, expected fp32, bf16 or fp16", op, what, name_of(dtype));
  }
}

template <class M>
void matrix(const char* op, const char* what, const M& m, Index rows, Index cols) {
  computes_in(op, what, m.dtype);
  if (m.rows != rows || m.cols != cols || m.stride < m.cols) {
    throw InternalError("{}: {} is {} x {} (stride {}), expected {} x {}", op, what, m.rows, m.cols, m.stride,
                        rows, cols);
  }
}

void gradient(const char* op, const GradientView& g, SequenceShape shape) {
  if (!g) throw InternalError("{}: the gradient has no fold plan", op);
  same(op, "leaves of the fold plan", static_cast<Index>(g.plan->merges.size()), shape.sequences);
  if (static_cast<Index>(g.slots.size()) < std::max(g.plan->depth_before, g.plan->depth_after)) {
    throw InternalError("{}: {} gradient slots, the fold plan uses {}", op, g.slots.size(),
                        std::max(g.plan->depth_before, g.plan->depth_after));
  }
}

Index groups_of(const char* op, Index cols, Index group) {
  if (group <= 0 || cols % group != 0)
    throw InternalError("{}: {} columns are no multiple of {}", op, cols, group);
  return cols / group;
}

/// fp32 numbers, so many.
template <class V>
void floats(const char* op, const char* what, const V& v, Index size) {
  if (v.size != size) throw InternalError("{}: size of {} is {}, expected {}", op, what, v.size, size);
  same_type(op, what, v.dtype, DType::f32);
}

void softmax_statistics(const char* op, const ConstVector& row_max, const ConstVector& row_sum,
                        const ConstVector& target_logit, Index rows) {
  floats(op, "row_max", row_max, rows);
  floats(op, "row_sum", row_sum, rows);
  floats(op, "target_logit", target_logit, rows);
}

void same_type_or_f32(const char* op, const char* what, DType found, DType expected) {
  if (found != DType::f32) same_type(op, what, found, expected);
}

void not_negative(const char* op, const char* what, Index found) {
  if (found < 0) throw InternalError("{}: {} is {}, expected 0 or more", op, what, found);
}

void attention_operands(const char* op, const AttentionShape& shape, const ConstMatrix& q,
                        const ConstMatrix& k, const ConstMatrix& v,
                        std::span<const std::int32_t> document_start) {
  groups_of(op, shape.heads, shape.kv_heads);
  not_negative(op, "the position of the first query", shape.q_first);
  not_negative(op, "the position of the first key", shape.k_first);
  const Index q_rows = shape.sequences * shape.q_length, k_rows = shape.sequences * shape.k_length;
  matrix(op, "q", q, q_rows, shape.heads * shape.head_dim);
  matrix(op, "k", k, k_rows, shape.kv_heads * shape.head_dim);
  matrix(op, "v", v, k_rows, shape.kv_heads * shape.head_dim);
  same_type(op, "k", k.dtype, q.dtype);
  same_type(op, "v", v.dtype, q.dtype);
  same(op, "number of document starts", static_cast<Index>(document_start.size()), q_rows);
}

/// In a type that operations compute in, or codes with a factor.
void operand(const char* op, const char* what, const ConstMatrix& m, Index rows, Index cols, DType codes) {
  if (!has_8_bits(m.dtype)) return matrix(op, what, m, rows, cols);
  same_type(op, what, m.dtype, codes);
  if (m.rows != rows || m.cols != cols || m.stride < m.cols || m.factor == nullptr)
    throw InternalError("{}: {} is {} x {} (stride {}), expected {} x {} codes and their factor", op, what,
                        m.rows, m.cols, m.stride, rows, cols);
}

/// Neither factor has 8 bits, or both have and the shape allows it.
void both_in_8_bits(const char* op, const ConstMatrix& a, const ConstMatrix& b, Index length, Index n,
                    Index k, const GradientView& dw) {
  if (has_8_bits(a.dtype) != has_8_bits(b.dtype))
    throw InternalError("{}: the factors are {} and {}", op, name_of(a.dtype), name_of(b.dtype));
  if (has_8_bits(a.dtype) && !fits_fp8(length, n, k, dw))
    throw InternalError("{}: no product in 8 bits of sequences of {} with [{}, {}]", op, length, n, k);
}

}  // namespace

void embedding_forward(std::span<const std::int32_t> ids, const ConstMatrix& table, Index first,
                       const Matrix& out) {
  not_negative("embedding_forward", "the first id", first);
  matrix("embedding_forward", "out", out, static_cast<Index>(ids.size()), table.cols);
  same_type("embedding_forward", "out", out.dtype, table.dtype);
}

void embedding_backward(std::span<const std::int32_t> ids, const ConstMatrix& dout, SequenceShape shape,
                        Index first, Index vocab, const GradientView& dtable) {
  const char* op = "embedding_backward";
  not_negative(op, "the first id", first);
  same(op, "number of ids", static_cast<Index>(ids.size()), shape.tokens());
  matrix(op, "dout", dout, shape.tokens(), dout.cols);
  not_negative(op, "the vocabulary", vocab);
  gradient(op, dtable, shape);
}

void rmsnorm_forward(const ConstMatrix& x, const ConstVector& weight, const Matrix& y,
                     const Vector& inv_rms) {
  const char* op = "rmsnorm_forward";
  computes_in(op, "x", x.dtype);
  const Index groups = groups_of(op, x.cols, weight.size);
  matrix(op, "y", y, x.rows, x.cols);
  same_type(op, "y", y.dtype, x.dtype);
  same_type(op, "weight", weight.dtype, x.dtype);
  if (inv_rms.data != nullptr) {
    same(op, "size of inv_rms", inv_rms.size, x.rows * groups);
    same_type(op, "inv_rms", inv_rms.dtype, DType::f32);
  }
}

void rmsnorm_backward(const ConstMatrix& x, const ConstVector& weight, const ConstVector& inv_rms,
                      const ConstMatrix& dy, const Matrix& dx, SequenceShape shape,
                      const GradientView& dweight) {
  const char* op = "rmsnorm_backward";
  const Index groups = groups_of(op, x.cols, weight.size);
  matrix(op, "x", x, shape.tokens(), x.cols);
  matrix(op, "dy", dy, x.rows, x.cols);
  same_type(op, "weight", weight.dtype, x.dtype);
  same_type(op, "dy", dy.dtype, x.dtype);
  if (dx.cols != 0) {
    matrix(op, "dx", dx, x.rows, x.cols);
    same_type(op, "dx", dx.dtype, x.dtype);
  }
  same(op, "size of inv_rms", inv_rms.size, x.rows * groups);
  same_type(op, "inv_rms", inv_rms.dtype, DType::f32);
  if (dweight) gradient(op, dweight, shape);
}

void to_fp8(const ConstMatrix& x, const Matrix& codes, bool transposed, const Fp8Scale& scale) {
  const char* op = "to_fp8";
  same_type(op, "x", x.dtype, DType::bf16);
  const Index rows = transposed ? x.cols : x.rows, cols = transposed ? x.rows : x.cols;
  if (!has_8_bits(codes.dtype) || codes.rows != rows || codes.cols != cols || codes.stride < cols)
    throw InternalError("{}: codes are {} x {} (stride {}) of {}, expected {} x {} of 8 bits", op, codes.rows,
                        codes.cols, codes.stride, name_of(codes.dtype), rows, cols);
  constexpr Index kMultiple = 16;
  if (rows % kMultiple != 0 || cols % kMultiple != 0 || codes.stride % kMultiple != 0 ||
      reinterpret_cast<std::uintptr_t>(codes.data) % kMultiple != 0)
    throw InternalError("{}: {} x {} codes (stride {}), expected multiples of {}", op, rows, cols,
                        codes.stride, kMultiple);
  if (scale.scale == nullptr || scale.amax == nullptr) throw InternalError("{}: there is no scale", op);
}

void linear_forward(const ConstMatrix& x, const ConstMatrix& w, const ConstVector& bias, const Matrix& y,
                    SequenceShape shape) {
  const char* op = "linear_forward";
  operand(op, "x", x, shape.tokens(), w.cols, DType::e4m3);
  operand(op, "w", w, w.rows, x.cols, DType::e4m3);
  matrix(op, "y", y, x.rows, w.rows);
  if (bias.data != nullptr) same(op, "size of bias", bias.size, w.rows);
  both_in_8_bits(op, x, w, shape.length, w.rows, w.cols, {});
}

void linear_backward_input(const ConstMatrix& dy, const ConstMatrix& w, const Matrix& dx,
                           SequenceShape shape) {
  const char* op = "linear_backward_input";
  const bool has_codes = has_8_bits(w.dtype);
  const Index n = has_codes ? w.cols : w.rows, k = has_codes ? w.rows : w.cols;
  operand(op, "dy", dy, shape.tokens(), n, DType::e5m2);
  operand(op, "w", w, w.rows, w.cols, DType::e4m3);
  matrix(op, "dx", dx, dy.rows, k);
  both_in_8_bits(op, dy, w, shape.length, n, k, {});
}

void linear_backward_weight(const ConstMatrix& dy, const ConstMatrix& x, SequenceShape shape,
                            const GradientView& dw, const GradientView& dbias) {
  const char* op = "linear_backward_weight";
  if (has_8_bits(dy.dtype)) {
    operand(op, "dy", dy, dy.rows, shape.tokens(), DType::e5m2);
    operand(op, "x", x, x.rows, shape.tokens(), DType::e4m3);
    if (dbias) throw InternalError("{}: a bias has its gradient from codes", op);
  } else {
    matrix(op, "dy", dy, shape.tokens(), dy.cols);
    matrix(op, "x", x, shape.tokens(), x.cols);
  }
  both_in_8_bits(op, dy, x, shape.length, dy.rows, x.rows, dw);
  gradient(op, dw, shape);
  if (dbias) gradient(op, dbias, shape);
}

void column_sums(const ConstMatrix& dy, SequenceShape shape, const GradientView& dbias) {
  matrix("column_sums", "dy", dy, shape.tokens(), dy.cols);
  gradient("column_sums", dbias, shape);
}

void rope(const Matrix& x, Index head_dim, std::span<const std::int32_t> positions,
          const ConstMatrix& cosines, const ConstMatrix& sines) {
  const char* op = "rope";
  groups_of(op, x.cols, head_dim);
  computes_in(op, "x", x.dtype);
  same(op, "number of positions", static_cast<Index>(positions.size()), x.rows);
  matrix(op, "sines", sines, cosines.rows, cosines.cols);
  same_type(op, "cosines", cosines.dtype, DType::f32);
  same_type(op, "sines", sines.dtype, DType::f32);
  if (2 * cosines.cols > head_dim) {
    throw InternalError("rope: {} angles do not fit a head of {}", cosines.cols, head_dim);
  }
}

void attention_forward(const AttentionShape& shape, const ConstMatrix& q, const ConstMatrix& k,
                       const ConstMatrix& v, std::span<const std::int32_t> document_start, const Matrix& out,
                       const Vector& log_sum_exp) {
  const char* op = "attention_forward";
  attention_operands(op, shape, q, k, v, document_start);
  matrix(op, "out", out, q.rows, q.cols);
  same_type_or_f32(op, "out", out.dtype, q.dtype);
  if (log_sum_exp.data != nullptr) floats(op, "log_sum_exp", log_sum_exp, q.rows * shape.heads);
}

void attention_backward(const AttentionShape& shape, const ConstMatrix& q, const ConstMatrix& k,
                        const ConstMatrix& v, const ConstMatrix& out, const ConstVector& log_sum_exp,
                        std::span<const std::int32_t> document_start, const ConstMatrix& dout,
                        const Matrix& dq, const Matrix& dk, const Matrix& dv) {
  const char* op = "attention_backward";
  attention_operands(op, shape, q, k, v, document_start);
  matrix(op, "out", out, q.rows, q.cols);
  matrix(op, "dout", dout, q.rows, q.cols);
  same_type(op, "out", out.dtype, q.dtype);
  same_type(op, "dout", dout.dtype, q.dtype);
  floats(op, "log_sum_exp", log_sum_exp, q.rows * shape.heads);
  matrix(op, "dq", dq, q.rows, q.cols);
  matrix(op, "dk", dk, k.rows, k.cols);
  matrix(op, "dv", dv, v.rows, v.cols);
  same_type_or_f32(op, "dq", dq.dtype, q.dtype);
  same_type_or_f32(op, "dk", dk.dtype, q.dtype);
  same_type_or_f32(op, "dv", dv.dtype, q.dtype);
}

void attention_merge(const Matrix& out_sum, const Vector& lse_sum, const ConstMatrix& out,
                     const ConstVector& log_sum_exp, Index head_dim) {
  const char* op = "attention_merge";
  const Index heads = groups_of(op, out.cols, head_dim);
  matrix(op, "out", out, out.rows, out.cols);
  matrix(op, "out_sum", out_sum, out.rows, out.cols);
  same_type(op, "out_sum", out_sum.dtype, DType::f32);
  floats(op, "lse_sum", lse_sum, out.rows * heads);
  floats(op, "log_sum_exp", log_sum_exp, out.rows * heads);
}

void swiglu_forward(const ConstMatrix& gate_up, const Matrix& y) {
  matrix("swiglu_forward", "gate_up", gate_up, y.rows, 2 * y.cols);
  matrix("swiglu_forward", "y", y, y.rows, y.cols);
  same_type("swiglu_forward", "y", y.dtype, gate_up.dtype);
}

void swiglu_backward(const ConstMatrix& gate_up, const ConstMatrix& dy, const Matrix& dgate_up,
                     const Matrix& y) {
  const char* op = "swiglu_backward";
  matrix(op, "gate_up", gate_up, dy.rows, 2 * dy.cols);
  matrix(op, "dy", dy, dy.rows, dy.cols);
  matrix(op, "dgate_up", dgate_up, dy.rows, 2 * dy.cols);
  same_type(op, "dy", dy.dtype, gate_up.dtype);
  same_type(op, "dgate_up", dgate_up.dtype, gate_up.dtype);
  if (y.data != nullptr) {
    matrix(op, "y", y, dy.rows, dy.cols);
    same_type(op, "y", y.dtype, gate_up.dtype);
  }
}

void cross_entropy(const ConstMatrix& logits, std::span<const std::int32_t> targets, const Vector& row_loss,
                   const Matrix& dlogits) {
  const char* op = "cross_entropy";
  matrix(op, "logits", logits, static_cast<Index>(targets.size()), logits.cols);
  same_type(op, "logits", logits.dtype, DType::f32);
  floats(op, "row_loss", row_loss, logits.rows);
  if (dlogits.data != nullptr) matrix(op, "dlogits", dlogits, logits.rows, logits.cols);
}

void cross_entropy_stats(const ConstMatrix& logits, std::span<const std::int32_t> targets, Index first,
                         const Vector& row_max, const Vector& row_sum, const Vector& target_logit) {
  const char* op = "cross_entropy_stats";
  not_negative(op, "the first column", first);
  matrix(op, "logits", logits, static_cast<Index>(targets.size()), logits.cols);
  same_type(op, "logits", logits.dtype, DType::f32);
  softmax_statistics(op, row_max, row_sum, target_logit, logits.rows);
}

void cross_entropy_combine(const ConstMatrix& stacked, Index parts, const Vector& row_max,
                           const Vector& row_sum, const Vector& target_logit) {
  const char* op = "cross_entropy_combine";
  not_negative(op, "the number of parts", parts);
  matrix(op, "stacked", stacked, 3 * parts, stacked.cols);
  same_type(op, "stacked", stacked.dtype, DType::f32);
  softmax_statistics(op, row_max, row_sum, target_logit, stacked.cols);
}

void cross_entropy_finish(const ConstMatrix& logits, std::span<const std::int32_t> targets, Index first,
                          const ConstVector& row_max, const ConstVector& row_sum,
                          const ConstVector& target_logit, const Vector& row_loss, const Matrix& dlogits) {
  const char* op = "cross_entropy_finish";
  not_negative(op, "the first column", first);
  matrix(op, "logits", logits, static_cast<Index>(targets.size()), logits.cols);
  same_type(op, "logits", logits.dtype, DType::f32);
  softmax_statistics(op, row_max, row_sum, target_logit, logits.rows);
  if (row_loss.data != nullptr) floats(op, "row_loss", row_loss, logits.rows);
  if (dlogits.data != nullptr) matrix(op, "dlogits", dlogits, logits.rows, logits.cols);
}

void adamw(const Vector& master, const ConstVector& gradient, const Vector& exp_avg, const Vector& exp_avg_sq,
           const Vector& compute) {
  const char* op = "adamw";
  same(op, "size of gradient", gradient.size, master.size);
  same(op, "size of exp_avg", exp_avg.size, master.size);
  same(op, "size of exp_avg_sq", exp_avg_sq.size, master.size);
  for (const DType dtype : {master.dtype, gradient.dtype, exp_avg.dtype, exp_avg_sq.dtype}) {
    same_type(op, "an operand", dtype, DType::f32);
  }
  if (compute.data != nullptr) {
    same(op, "size of compute", compute.size, master.size);
    computes_in(op, "compute", compute.dtype);
  }
}

void square_sums(const ConstVector& x, std::span<double> sums) {
  same_type("square_sums", "x", x.dtype, DType::f32);
  same("square_sums", "number of sums", static_cast<Index>(sums.size()),
       (x.size + kSumBlock - 1) / kSumBlock);
}

void exact_words(const char* op, std::span<const std::int64_t> words) {
  same(op, "number of words", std::ssize(words), static_cast<Index>(ExactSum::kWordCount));
}

void tree_sum(std::span<const float* const> values, std::span<const int> merges, Index count) {
  same("tree_sum", "number of merges", static_cast<Index>(merges.size()), static_cast<Index>(values.size()));
  if (count < 0) throw InternalError("tree_sum: {} elements", count);
  Index depth = 0;
  for (const int m : merges) {
    if (m < 0 || m > depth) throw InternalError("tree_sum: {} merges with {} values on the stack", m, depth);
    depth += 1 - m;
  }
  same("tree_sum", "number of values left", depth, 1);
}

void sum_parts(const ConstMatrix& stacked, Index parts, const ConstMatrix& residual, const Matrix& out) {
  const char* op = "sum_parts";
  if (parts < 1) throw InternalError("{}: {} parts, expected 1 or more", op, parts);
  matrix(op, "stacked", stacked, parts * out.rows, out.cols);
  matrix(op, "out", out, out.rows, out.cols);
  if (residual.data != nullptr) {
    matrix(op, "residual", residual, out.rows, out.cols);
    same_type(op, "residual", residual.dtype, out.dtype);
  }
}

void dropout(const ConstMatrix& x, std::span<const std::int32_t> rows, const DropoutRule& rule,
             const Matrix& out) {
  const char* op = "dropout";
  computes_in(op, "x", x.dtype);
  matrix(op, "out", out, x.rows, x.cols);
  same_type(op, "out", out.dtype, x.dtype);
  if (rule.seed != nullptr) same(op, "numbers of rows", static_cast<Index>(rows.size()), x.rows);
  if (rule.first_column < 0 || rule.first_column + x.cols > (Index{1} << 32))
    throw InternalError("dropout: columns from {} on do not have numbers of 32 bits", rule.first_column);
}

void add(const Vector& y, const ConstVector& x) {
  same("add", "size of x", x.size, y.size);
  same_type("add", "x", x.dtype, DType::f32);
  same_type("add", "y", y.dtype, DType::f32);
}

void subtract(const Vector& y, const ConstVector& x) {
  floats("subtract", "x", x, y.size);
  floats("subtract", "y", y, y.size);
}

void copy(const ConstMatrix& x, const Matrix& y) {
  matrix("copy", "x", x, x.rows, x.cols);
  matrix("copy", "y", y, x.rows, x.cols);
}

void orthonormalise_rows(const Matrix& x) {
  matrix("orthonormalise_rows", "x", x, x.rows, x.cols);
  same_type("orthonormalise_rows", "x", x.dtype, DType::f32);
}

void take_largest(const Vector& x, const Vector& values, std::span<const std::uint32_t> indices) {
  const char* op = "take_largest";
  floats(op, "x", x, x.size);
  floats(op, "values", values, values.size);
  same(op, "number of indices", static_cast<Index>(indices.size()), values.size);
  if (values.size > x.size || x.size > Index{1} << 32)
    throw InternalError("{}: {} of {} elements; at most all of them, and of 2^32", op, values.size, x.size);
}

void scatter_add(const Vector& y, const ConstVector& values, std::span<const std::uint32_t> indices) {
  const char* op = "scatter_add";
  floats(op, "y", y, y.size);
  floats(op, "values", values, static_cast<Index>(indices.size()));
}

void penalise_repeats(const Vector& logits, std::span<const std::int32_t> ids, float penalty) {
  const char* op = "penalise_repeats";
  floats(op, "logits", logits, logits.size);
  if (std::ssize(ids) > logits.size)
    throw InternalError("{}: {} ids of {} logits are not distinct", op, ids.size(), logits.size);
  if (!(penalty > 0)) throw InternalError("{}: penalty {}, expected more than 0", op, penalty);
}

void sample(const ConstMatrix& logits, std::span<const double> uniforms, const SamplingRule& rule,
            std::span<const std::int32_t> tokens) {
  const char* op = "sample";
  matrix(op, "logits", logits, static_cast<Index>(tokens.size()), logits.cols);
  same_type(op, "logits", logits.dtype, DType::f32);
  same(op, "number of uniforms", std::ssize(uniforms), logits.rows);
  if (logits.cols < 1 || logits.cols > kMostLogits)
    throw InternalError("{}: {} logits, expected 1 to {}", op, logits.cols, kMostLogits);
  not_negative(op, "top_k", rule.top_k);
  if (!(rule.temperature >= 0) || !(rule.top_p > 0))
    throw InternalError("{}: temperature {} and top_p {}, expected at least 0 and more than 0", op,
                        rule.temperature, rule.top_p);
}

}  // namespace cartan::device::check
