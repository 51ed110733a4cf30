// The table of operations: what a device must be able to compute. The training step is written against it
// once.
//
// Rules for all: ordered on `stream`, no allocation, no communication; dtype fp32 or bf16 as the views say,
// every sum in fp32 or better in a fixed order. A result row of a sequence has the same bits whatever the
// number of sequences in the micro-batch and of threads: products are cut into pieces whose shape depends on
// the sequence length and the parameter only. A shape that does not fit is an InternalError.
#pragma once

#include <cstdint>
#include <span>

#include "cartan/device/stream.hpp"
#include "cartan/device/view.hpp"

namespace cartan::device {

struct AttentionShape {
  Index sequences = 0;
  Index q_length = 0;  ///< queries of a sequence: the last q_length of its k_length positions
  Index k_length = 0;
  Index heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 1.0f;  ///< on the scores, 1 / sqrt(head_dim)
};

/// Scalars of one AdamW update. bias_correction1 = 1 - beta1^t, bias_correction2 = 1 - beta2^t.
struct AdamWStep {
  float lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
  float bias_correction1 = 1, bias_correction2 = 1;
  float gradient_scale = 1;  ///< the gradient is multiplied by it first: 1 / tokens, clipping
};

/// Floats in a block of square_sums; units start at multiples of it in flat buffers.
inline constexpr Index kSumBlock = 1024;

class Ops {
 public:
  virtual ~Ops() = default;

  /// out[t, :] = table[ids[t], :].   table [V, D], ids [T], out [T, D], same dtype.
  virtual void embedding_forward(std::span<const std::int32_t> ids, ConstMatrix table, Matrix out,
                                 Stream& stream) = 0;
  /// Leaf of sequence s: row v is the sum of dout[t, :] over its tokens t with ids[t] == v, in order of t.
  /// dtable is the gradient of the table [vocab, D].
  virtual void embedding_backward(std::span<const std::int32_t> ids, ConstMatrix dout, SequenceShape shape,
                                  Index vocab, const GradientView& dtable, Stream& stream) = 0;

  /// RMS normalization of each group of weight.size columns: y = x * inv_rms * weight, inv_rms = 1 /
  /// sqrt(mean(x^2) + eps).
  ///   x, y [T, groups * D], same dtype, y may be x; weight [D] in their dtype; inv_rms fp32 [T * groups],
  ///   may be absent
  /// Source: Zhang and Sennrich 2019, arXiv:1910.07467.
  virtual void rmsnorm_forward(ConstMatrix x, ConstVector weight, float eps, Matrix y, Vector inv_rms,
                               Stream& stream) = 0;
  /// dx = dx * accumulate + d(loss)/dx; leaf of sequence s of dweight: sum over its rows, in order, of dy * x
  /// * inv_rms. dx may be dy. shape tells which rows belong to which sequence.
  virtual void rmsnorm_backward(ConstMatrix x, ConstVector weight, ConstVector inv_rms, ConstMatrix dy,
                                Matrix dx, bool accumulate, SequenceShape shape, const GradientView& dweight,
                                Stream& stream) = 0;

  /// y = y * accumulate + x w^T + bias.   x [T, K], w [N, K], bias [N] or absent, y [T, N]. y may be fp32
  /// while x and w are bf16.
  virtual void linear_forward(ConstMatrix x, ConstMatrix w, ConstVector bias, Matrix y, bool accumulate,
                              SequenceShape shape, Stream& stream) = 0;
  /// dx = dx * accumulate + dy w.   dy [T, N], w [N, K], dx [T, K].
  virtual void linear_backward_input(ConstMatrix dy, ConstMatrix w, Matrix dx, bool accumulate,
                                     SequenceShape shape, Stream& stream) = 0;
  /// Leaf of sequence s: dw = dy_s^T x_s [N, K] (contiguous in the slots); dbias, where given: column sums of
  /// dy_s in row order.
  virtual void linear_backward_weight(ConstMatrix dy, ConstMatrix x, SequenceShape shape,
                                      const GradientView& dw, const GradientView& dbias, Stream& stream) = 0;

  /// Rotary position embedding in place on each group of head_dim columns of x [T, heads * head_dim]:
  /// channels (i, i + R) with R = cosines.cols <= head_dim / 2 turn by the angle of positions[t]; channels
  /// beyond 2 R pass. inverse turns back (the backward pass).   cosines, sines fp32 [positions, R]. Source:
  /// Su et al. 2021, arXiv:2104.09864, halves as pairs.
  virtual void rope(Matrix x, Index head_dim, std::span<const std::int32_t> positions, ConstMatrix cosines,
                    ConstMatrix sines, bool inverse, Stream& stream) = 0;

  /// Causal attention inside documents. Query i of sequence s stands at key position p = k_length - q_length
  /// + i and sees the keys document_start[s * q_length + i] ... p. Query head h reads kv head h / (heads /
  /// kv_heads). No [q, k] matrix is stored.
  ///   q, out [sequences * q_length, heads * head_dim]; k, v [sequences * k_length, kv_heads * head_dim]
  ///   log_sum_exp fp32 [sequences * q_length * heads], may be absent
  /// Source: Dao 2023, arXiv:2307.08691 (online softmax over blocks of keys).
  virtual void attention_forward(const AttentionShape& shape, ConstMatrix q, ConstMatrix k, ConstMatrix v,
                                 std::span<const std::int32_t> document_start, Matrix out, Vector log_sum_exp,
                                 Stream& stream) = 0;
  /// Gradients of attention_forward for q_length == k_length; scores are recomputed block by block. dq, dk,
  /// dv are overwritten and must not overlap q, k, v, out or dout.
  virtual void attention_backward(const AttentionShape& shape, ConstMatrix q, ConstMatrix k, ConstMatrix v,
                                  ConstMatrix out, ConstVector log_sum_exp,
                                  std::span<const std::int32_t> document_start, ConstMatrix dout, Matrix dq,
                                  Matrix dk, Matrix dv, Stream& stream) = 0;

  /// y = silu(gate) * up with gate_up = [gate | up].   gate_up [T, 2 F], y [T, F].
  virtual void swiglu_forward(ConstMatrix gate_up, Matrix y, Stream& stream) = 0;
  /// dgate_up may be gate_up. y, where y.data is given, receives the forward result once more (for the wgrad
  /// of the next product); y may be dy.
  virtual void swiglu_backward(ConstMatrix gate_up, ConstMatrix dy, Matrix dgate_up, Matrix y,
                               Stream& stream) = 0;

  /// Loss of each row: row_loss[t] = log(sum_v exp(logits[t, v])) - logits[t, targets[t]], 0 where targets[t]
  /// < 0. dlogits, where given, receives softmax - onehot (zero rows where ignored); row t may start where
  /// row t of logits starts, also with a smaller dtype.   logits fp32 [T, V], row_loss fp32 [T].
  virtual void cross_entropy(ConstMatrix logits, std::span<const std::int32_t> targets, Vector row_loss,
                             Matrix dlogits, Stream& stream) = 0;

  /// One AdamW update in one pass: master *= 1 - lr * weight_decay, then the moments, then the step.
  /// `compute`, where given, receives the new master values in its dtype. All have the same size. Source:
  /// Loshchilov and Hutter 2019, arXiv:1711.05101.
  virtual void adamw(Vector master, ConstVector gradient, Vector exp_avg, Vector exp_avg_sq, Vector compute,
                     const AdamWStep& step, Stream& stream) = 0;

  /// sums[b] = sum of squares of x[b * kSumBlock ...), fp64, the last block may be short.
  virtual void square_sums(ConstVector x, std::span<double> sums, Stream& stream) = 0;

  /// out = canonical tree sum: values[0], values[1], ... are pushed in order; before value i is pushed it is
  /// added to the merges[i] topmost ones (top + value). One value must remain. out may be any of the values.
  /// fp32 [count].
  virtual void tree_sum(std::span<const float* const> values, std::span<const int> merges, float* out,
                        Index count, Stream& stream) = 0;

  /// y += x, fp32.
  virtual void add(Vector y, ConstVector x, Stream& stream) = 0;
  virtual void fill_zero(Vector y, Stream& stream) = 0;
  /// Row by row, converting between dtypes.
  virtual void copy(ConstMatrix x, Matrix y, Stream& stream) = 0;

  /// Whether every element is finite. Blocks the host; for diagnosis only.
  virtual bool all_finite(ConstMatrix x, Stream& stream) = 0;
};

}  // namespace cartan::device
