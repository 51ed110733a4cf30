// One table of conditions for all devices.
#include "device/checks.hpp"

#include "cartan/core/error.hpp"

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
  if (dtype != DType::f32 && dtype != DType::bf16) {
    throw InternalError("{}: {} is {}, expected fp32 or bf16", op, what, name_of(dtype));
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

}  // namespace

void embedding_forward(std::span<const std::int32_t> ids, const ConstMatrix& table, const Matrix& out) {
  matrix("embedding_forward", "out", out, static_cast<Index>(ids.size()), table.cols);
  same_type("embedding_forward", "out", out.dtype, table.dtype);
}

void embedding_backward(std::span<const std::int32_t> ids, const ConstMatrix& dout, SequenceShape shape,
                        Index vocab, const GradientView& dtable) {
  const char* op = "embedding_backward";
  same(op, "number of ids", static_cast<Index>(ids.size()), shape.tokens());
  matrix(op, "dout", dout, shape.tokens(), dout.cols);
  if (vocab <= 0) throw InternalError("{}: vocabulary of {}", op, vocab);
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
  matrix(op, "dx", dx, x.rows, x.cols);
  same_type(op, "weight", weight.dtype, x.dtype);
  same_type(op, "dy", dy.dtype, x.dtype);
  same_type(op, "dx", dx.dtype, x.dtype);
  same(op, "size of inv_rms", inv_rms.size, x.rows * groups);
  same_type(op, "inv_rms", inv_rms.dtype, DType::f32);
  gradient(op, dweight, shape);
}

void linear_forward(const ConstMatrix& x, const ConstMatrix& w, const ConstVector& bias, const Matrix& y,
                    SequenceShape shape) {
  const char* op = "linear_forward";
  matrix(op, "x", x, shape.tokens(), w.cols);
  matrix(op, "w", w, w.rows, x.cols);
  matrix(op, "y", y, x.rows, w.rows);
  if (bias.data != nullptr) same(op, "size of bias", bias.size, w.rows);
}

void linear_backward_input(const ConstMatrix& dy, const ConstMatrix& w, const Matrix& dx,
                           SequenceShape shape) {
  const char* op = "linear_backward_input";
  matrix(op, "dy", dy, shape.tokens(), w.rows);
  matrix(op, "w", w, dy.cols, w.cols);
  matrix(op, "dx", dx, dy.rows, w.cols);
}

void linear_backward_weight(const ConstMatrix& dy, const ConstMatrix& x, SequenceShape shape,
                            const GradientView& dw, const GradientView& dbias) {
  const char* op = "linear_backward_weight";
  matrix(op, "dy", dy, shape.tokens(), dy.cols);
  matrix(op, "x", x, shape.tokens(), x.cols);
  gradient(op, dw, shape);
  if (dbias) gradient(op, dbias, shape);
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
  groups_of(op, shape.heads, shape.kv_heads);
  if (shape.q_length > shape.k_length) {
    throw InternalError("{}: {} queries, but {} keys", op, shape.q_length, shape.k_length);
  }
  const Index q_rows = shape.sequences * shape.q_length, k_rows = shape.sequences * shape.k_length;
  matrix(op, "q", q, q_rows, shape.heads * shape.head_dim);
  matrix(op, "k", k, k_rows, shape.kv_heads * shape.head_dim);
  matrix(op, "v", v, k_rows, shape.kv_heads * shape.head_dim);
  matrix(op, "out", out, q_rows, shape.heads * shape.head_dim);
  same_type(op, "k", k.dtype, q.dtype);
  same_type(op, "v", v.dtype, q.dtype);
  same_type(op, "out", out.dtype, q.dtype);
  same(op, "number of document starts", static_cast<Index>(document_start.size()), q_rows);
  if (log_sum_exp.data != nullptr) {
    same(op, "size of log_sum_exp", log_sum_exp.size, q_rows * shape.heads);
    same_type(op, "log_sum_exp", log_sum_exp.dtype, DType::f32);
  }
}

void attention_backward(const AttentionShape& shape, const ConstMatrix& q, const ConstMatrix& k,
                        const ConstMatrix& v, const ConstMatrix& out, const ConstVector& log_sum_exp,
                        std::span<const std::int32_t> document_start, const ConstMatrix& dout,
                        const Matrix& dq, const Matrix& dk, const Matrix& dv) {
  const char* op = "attention_backward";
  groups_of(op, shape.heads, shape.kv_heads);
  same(op, "number of queries", shape.q_length, shape.k_length);
  const Index rows = shape.sequences * shape.q_length;
  const Index q_cols = shape.heads * shape.head_dim, kv_cols = shape.kv_heads * shape.head_dim;
  matrix(op, "q", q, rows, q_cols);
  matrix(op, "out", out, rows, q_cols);
  matrix(op, "dout", dout, rows, q_cols);
  matrix(op, "dq", dq, rows, q_cols);
  matrix(op, "k", k, rows, kv_cols);
  matrix(op, "v", v, rows, kv_cols);
  matrix(op, "dk", dk, rows, kv_cols);
  matrix(op, "dv", dv, rows, kv_cols);
  for (const DType dtype : {k.dtype, v.dtype, out.dtype, dout.dtype, dq.dtype, dk.dtype, dv.dtype}) {
    same_type(op, "an operand", dtype, q.dtype);
  }
  same(op, "size of log_sum_exp", log_sum_exp.size, rows * shape.heads);
  same_type(op, "log_sum_exp", log_sum_exp.dtype, DType::f32);
  same(op, "number of document starts", static_cast<Index>(document_start.size()), rows);
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
  same(op, "size of row_loss", row_loss.size, logits.rows);
  same_type(op, "row_loss", row_loss.dtype, DType::f32);
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

void add(const Vector& y, const ConstVector& x) {
  same("add", "size of x", x.size, y.size);
  same_type("add", "x", x.dtype, DType::f32);
  same_type("add", "y", y.dtype, DType::f32);
}

void copy(const ConstMatrix& x, const Matrix& y) {
  matrix("copy", "x", x, x.rows, x.cols);
  matrix("copy", "y", y, x.rows, x.cols);
}

}  // namespace cartan::device::check
