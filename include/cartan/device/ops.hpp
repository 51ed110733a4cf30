// The table of operations: what a device must be able to compute. The training step is written against it
// once.
//
// Rules for all: ordered on `stream`, no allocation, no communication; dtype fp32, bf16 or fp16 as the views
// say, every sum in fp32 or better in a fixed order. A result row of a sequence has the same bits whatever
// the number of sequences in the micro-batch and of threads: products are cut into pieces whose shape depends
// on the sequence length and the parameter only. A shape that does not fit is an InternalError.
#pragma once

#include <cstdint>
#include <span>

#include "cartan/device/loss_scale.hpp"
#include "cartan/device/sampling.hpp"
#include "cartan/device/stream.hpp"
#include "cartan/device/view.hpp"

namespace cartan::device {

/// A run of queries of each sequence and a run of its keys. Positions count from the sequence's start, also
/// where another rank has it.
struct AttentionShape {
  Index sequences = 0;
  Index q_length = 0, k_length = 0;  ///< of a sequence
  Index heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 1.0f;              ///< on the scores, 1 / sqrt(head_dim)
  Index q_first = 0, k_first = 0;  ///< position of the first query and of the first key of each sequence
};

/// Scalars of one AdamW update. bias_correction1 = 1 - beta1^t, bias_correction2 = 1 - beta2^t.
struct AdamWStep {
  float lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
  float bias_correction1 = 1, bias_correction2 = 1;
  float gradient_scale = 1;  ///< the gradient is multiplied by it first: 1 / tokens, clipping
};

/// How an update is decided on.
struct UpdateRule {
  double scale = 1;  ///< of the gradient: 1 / targets
  double clip = 0;   ///< the norm that is left of a larger one; 0: any
};

/// In device memory: what decide_update found, for adamw.
struct UpdateDecision {
  double norm = 0;              ///< of the scaled gradient
  float gradient_scale = 0;     ///< the rule's scale, and clipping
  std::int32_t is_applied = 0;  ///< 0: the norm is not finite
};

/// Which elements a dropout leaves away, and what it does with the others.
struct DropoutRule {
  float factor = 1;                     ///< multiplies what stays
  std::uint32_t threshold = 0;          ///< an element whose random 32 bits are below it is left away
  const std::uint64_t* seed = nullptr;  ///< in device memory; null: all stays
  std::uint64_t stream = 0;             ///< keeps several dropouts with one seed apart
  Index first_column = 0;               ///< number of the matrix's first column
};

/// Floats in a block of square_sums; units start at multiples of it in flat buffers.
inline constexpr Index kSumBlock = 1024;

/// Whether the products of a linear layer [N, K] on sequences of this length can be made of 8-bit codes, on
/// every device: tensor cores want multiples of 16, and results at multiples of 16 bytes (`dw` is the wgrad's
/// place). A product that cannot is to be made in 16 bits.
bool fits_fp8(Index length, Index n, Index k, const GradientView& dw = {});

class Ops {
 public:
  virtual ~Ops() = default;

  /// out[t, :] = table[ids[t] - first, :], zeros where the table lacks the id: it is the slice of a whole
  /// table that starts at id `first`, and the sum over the slices is the row of the whole. A negative id is
  /// an error on cpu; a GPU, whose ids no host sees, makes the row NaN, which the check of the loss finds.
  ///   table [V, D], ids [T] not negative, out [T, D], same dtype
  virtual void embedding_forward(std::span<const std::int32_t> ids, ConstMatrix table, Index first,
                                 Matrix out, Stream& stream) = 0;
  /// Leaf of sequence s: row v is the sum of dout[t, :] over its tokens t with ids[t] == first + v, in order
  /// of t; other ids add nothing. dtable is the gradient of the table [vocab, D] that starts at id `first`.
  virtual void embedding_backward(std::span<const std::int32_t> ids, ConstMatrix dout, SequenceShape shape,
                                  Index first, Index vocab, const GradientView& dtable, Stream& stream) = 0;

  /// RMS normalization of each group of weight.size columns: y = x * inv_rms * weight, inv_rms = 1 /
  /// sqrt(mean(x^2) + eps).
  ///   x, y [T, groups * D], same dtype, y may be x; weight [D] in their dtype; inv_rms fp32 [T * groups],
  ///   may be absent
  /// Source: Zhang and Sennrich 2019, arXiv:1910.07467.
  virtual void rmsnorm_forward(ConstMatrix x, ConstVector weight, float eps, Matrix y, Vector inv_rms,
                               Stream& stream) = 0;
  /// dx = dx * accumulate + d(loss)/dx; leaf of sequence s of dweight: sum over its rows, in order, of dy * x
  /// * inv_rms. dx may be dy; either of dx and dweight may be absent. shape tells which rows belong to which
  /// sequence.
  virtual void rmsnorm_backward(ConstMatrix x, ConstVector weight, ConstVector inv_rms, ConstMatrix dy,
                                Matrix dx, bool accumulate, SequenceShape shape, const GradientView& dweight,
                                Stream& stream) = 0;

  /// codes = x * *scale.scale in the 8-bit type of codes: rounded to nearest even, at most the largest finite
  /// number; a NaN stays one, and makes amax NaN.   x bf16 [R, C]; codes [R, C], or [C, R] if transposed, at
  /// a multiple of 16 bytes as all their rows are; R and C are multiples of 16. Source: Micikevicius et al.
  /// 2022, arXiv:2209.05433.
  virtual void to_fp8(ConstMatrix x, Matrix codes, bool transposed, const Fp8Scale& scale,
                      Stream& stream) = 0;

  // The three products of a linear layer. Both operands may be 8-bit codes where fits_fp8 says so: e4m3, but
  // dy e5m2. The result is then 16 or 32 bits, and w of the second, dy and x of the third are given
  // transposed, because tensor cores multiply rows by rows.

  /// y = y * accumulate + x w^T + bias.   x [T, K], w [N, K], bias [N] or absent, y [T, N]. y may be fp32
  /// while x and w have 16 bits.
  virtual void linear_forward(ConstMatrix x, ConstMatrix w, ConstVector bias, Matrix y, bool accumulate,
                              SequenceShape shape, Stream& stream) = 0;
  /// dx = dx * accumulate + dy w.   dy [T, N], w [N, K], dx [T, K].
  virtual void linear_backward_input(ConstMatrix dy, ConstMatrix w, Matrix dx, bool accumulate,
                                     SequenceShape shape, Stream& stream) = 0;
  /// Leaf of sequence s: dw = dy_s^T x_s [N, K] (contiguous in the slots); dbias, where given: as
  /// column_sums. With codes dbias is absent.
  virtual void linear_backward_weight(ConstMatrix dy, ConstMatrix x, SequenceShape shape,
                                      const GradientView& dw, const GradientView& dbias, Stream& stream) = 0;
  /// Leaf of sequence s: the sum of the rows of dy_s in their order.   dy [T, N], dbias [N]
  virtual void column_sums(ConstMatrix dy, SequenceShape shape, const GradientView& dbias,
                           Stream& stream) = 0;

  /// Rotary position embedding in place on each group of head_dim columns of x [T, heads * head_dim]:
  /// channels (i, i + R) with R = cosines.cols <= head_dim / 2 turn by the angle of positions[t]; channels
  /// beyond 2 R pass. inverse turns back (the backward pass). A position that the tables lack is an error on
  /// cpu, and makes the row NaN on a GPU.   cosines, sines fp32 [positions, R]. Source: Su et al. 2021,
  /// arXiv:2104.09864, halves as pairs.
  virtual void rope(Matrix x, Index head_dim, std::span<const std::int32_t> positions, ConstMatrix cosines,
                    ConstMatrix sines, bool inverse, Stream& stream) = 0;

  /// Causal attention inside documents. Query i of sequence s stands at position p = q_first + i and sees
  /// those of the keys document_start[s * q_length + i] ... p that are here, k_first ... k_first + k_length -
  /// 1. Where it sees none, its row of out is 0 and its log_sum_exp -infinity. Query head h reads kv head h /
  /// (heads / kv_heads). No [q, k] matrix is stored. A row's bits depend on its query and on the keys that it
  /// sees, not on the cut into runs.
  ///   q, out [sequences * q_length, heads * head_dim]; k, v [sequences * k_length, kv_heads * head_dim]
  ///   out in the dtype of q or fp32; log_sum_exp fp32 [sequences * q_length * heads], may be absent
  /// Source: Dao 2023, arXiv:2307.08691 (online softmax over blocks of keys).
  virtual void attention_forward(const AttentionShape& shape, ConstMatrix q, ConstMatrix k, ConstMatrix v,
                                 std::span<const std::int32_t> document_start, Matrix out, Vector log_sum_exp,
                                 Stream& stream) = 0;
  /// Adds what a query saw elsewhere to what it has seen: out_sum and lse_sum become the attention over both
  /// sets of keys. Where one side saw nothing (-infinity), the other one stays exactly as it is; hence a sum
  /// starts as the first part, or as out_sum 0 and lse_sum -infinity.
  ///   out_sum fp32 and out [T, heads * head_dim], lse_sum and log_sum_exp fp32 [T * heads]
  /// Source: Liu, Zaharia and Abbeel 2023, arXiv:2310.01889 (ring attention).
  virtual void attention_merge(Matrix out_sum, Vector lse_sum, ConstMatrix out, ConstVector log_sum_exp,
                               Index head_dim, Stream& stream) = 0;
  /// What the keys here add to the gradients: dq = dq * accumulate_dq + ..., dk and dv = ... *
  /// accumulate_dkv + .... Scores are recomputed block by block. out and log_sum_exp are the final ones, over
  /// all keys that the queries see anywhere; a query that sees none (log_sum_exp -infinity) adds nothing.
  /// Sums run over keys and queries in ascending order and go on from what accumulates, so that fp32
  /// gradients of runs taken in that order have the bits of one call; on a GPU with 16-bit operands, where
  /// each run but the last has a multiple of 16 keys from the sequence's start, or of 16 queries.
  ///   dq, dk, dv each in the dtype of q or fp32; they must not overlap q, k, v, out or dout
  virtual void attention_backward(const AttentionShape& shape, ConstMatrix q, ConstMatrix k, ConstMatrix v,
                                  ConstMatrix out, ConstVector log_sum_exp,
                                  std::span<const std::int32_t> document_start, ConstMatrix dout, Matrix dq,
                                  bool accumulate_dq, Matrix dk, Matrix dv, bool accumulate_dkv,
                                  Stream& stream) = 0;

  /// y = silu(gate) * up with gate_up = [gate | up].   gate_up [T, 2 F], y [T, F].
  virtual void swiglu_forward(ConstMatrix gate_up, Matrix y, Stream& stream) = 0;
  /// dgate_up may be gate_up. y, where y.data is given, receives the forward result once more (for the wgrad
  /// of the next product); y may be dy.
  virtual void swiglu_backward(ConstMatrix gate_up, ConstMatrix dy, Matrix dgate_up, Matrix y,
                               Stream& stream) = 0;

  /// Loss of each row: row_loss[t] = log(sum_v exp(logits[t, v])) - logits[t, targets[t]], 0 where targets[t]
  /// < 0. dlogits, where given, receives *scale * (softmax - onehot) (zero rows where ignored): the gradient
  /// of *scale times the loss, which keeps fp16 gradients in range. scale lies in device memory; null: 1. Row
  /// t may start where row t of logits starts, also with a smaller dtype.   logits fp32 [T, V], row_loss fp32
  /// [T], without the scale.
  virtual void cross_entropy(ConstMatrix logits, std::span<const std::int32_t> targets, Vector row_loss,
                             Matrix dlogits, const float* scale, Stream& stream) = 0;
  /// First half of cross_entropy where the vocabulary is cut: logits holds the columns from `first`. Each
  /// row's maximum (-infinity without columns), sum of exp(logit - maximum), and logit of its target,
  /// -infinity where that lies elsewhere or is < 0.   logits fp32 [T, V], V may be 0; the others fp32 [T].
  /// Source: Shoeybi et al. 2019, arXiv:1909.08053.
  virtual void cross_entropy_stats(ConstMatrix logits, std::span<const std::int32_t> targets, Index first,
                                   Vector row_max, Vector row_sum, Vector target_logit, Stream& stream) = 0;
  /// The statistics of all columns from those of `parts` parts: stacked fp32 [3 parts, T] has row_max,
  /// row_sum and target_logit of each part.
  virtual void cross_entropy_combine(ConstMatrix stacked, Index parts, Vector row_max, Vector row_sum,
                                     Vector target_logit, Stream& stream) = 0;
  /// Second half: row_max, row_sum and target_logit are those of all columns, row_sum = sum over the parts of
  /// sum * exp(maximum - row_max). row_loss (may be absent) as cross_entropy's; dlogits (may be absent) are
  /// those of the columns here, scaled likewise, with the same right to lie over logits.
  virtual void cross_entropy_finish(ConstMatrix logits, std::span<const std::int32_t> targets, Index first,
                                    ConstVector row_max, ConstVector row_sum, ConstVector target_logit,
                                    Vector row_loss, Matrix dlogits, const float* scale, Stream& stream) = 0;

  /// One AdamW update in one pass: master *= 1 - lr * weight_decay, then the moments, then the step.
  /// `compute`, where given, receives the new master values in its dtype. All have the same size. A decision,
  /// where given, replaces step.gradient_scale; where it says that the update is not applied, the others keep
  /// their values. Source: Loshchilov and Hutter 2019, arXiv:1711.05101.
  virtual void adamw(Vector master, ConstVector gradient, Vector exp_avg, Vector exp_avg_sq, Vector compute,
                     const AdamWStep& step, const UpdateDecision* decision, Stream& stream) = 0;

  /// sums[b] = sum of squares of x[b * kSumBlock ...), fp64, the last block may be short.
  virtual void square_sums(ConstVector x, std::span<double> sums, Stream& stream) = 0;
  /// The words of ExactSum (core/exact_sum.hpp): those of the sum of all values, which adding over ranks
  /// keeps exact.
  virtual void exact_sum(std::span<const double> values, std::span<std::int64_t> words, Stream& stream) = 0;
  /// From the words of the squares' sum, with scale = rule.scale / *loss_scale (in device memory; null: 1):
  /// norm = scale * sqrt(sum), gradient_scale = scale * min(1, clip / (norm + 1e-6)).
  virtual void decide_update(std::span<const std::int64_t> words, const UpdateRule& rule,
                             const float* loss_scale, UpdateDecision* decision, Stream& stream) = 0;
  /// Moves a loss scale: an update that is not applied is an overflow, any other a good step. An overflow
  /// takes one from the hysteresis, or, of the last one, halves the scale; when a multiple of `window` good
  /// steps have followed another the scale doubles. of_loss = scale * rule.share. All in device memory.
  /// Source: Micikevicius et al. 2018, arXiv:1710.03740.
  virtual void update_loss_scale(const UpdateDecision* decision, const LossScaleRule& rule,
                                 LossScaleState* state, float* of_loss, Stream& stream) = 0;

  /// out = canonical tree sum: values[0], values[1], ... are pushed in order; before value i is pushed it is
  /// added to the merges[i] topmost ones (top + value). One value must remain. out may be any of the values.
  /// fp32 [count].
  virtual void tree_sum(std::span<const float* const> values, std::span<const int> merges, float* out,
                        Index count, Stream& stream) = 0;

  /// out[t, :] = residual[t, :] + (stacked[t, :] + stacked[T + t, :] + ...): the sum over the parts in their
  /// order, then the residual (may be absent), rounded once. out may be residual.
  ///   stacked [parts * T, D]; residual and out [T, D] in one dtype
  virtual void sum_parts(ConstMatrix stacked, Index parts, ConstMatrix residual, Matrix out,
                         Stream& stream) = 0;
  /// out = x * rule.factor, 0 where an element is left away. Its random bits are a function of seed, stream,
  /// the number of its row, rows[t] (not negative), and that of its column c = first_column + its own: word c
  /// % 4 of philox({c / 4, row, stream}, seed) (core/random.hpp), on every device. `rows` may be empty
  /// without a seed. out may be x.   x, out [T, D], same dtype; first_column + D at most 2^32 Source:
  /// Srivastava et al. 2014, Journal of Machine Learning Research 15.
  virtual void dropout(ConstMatrix x, std::span<const std::int32_t> rows, const DropoutRule& rule, Matrix out,
                       Stream& stream) = 0;
  /// y += x, fp32.
  virtual void add(Vector y, ConstVector x, Stream& stream) = 0;
  /// y -= x, fp32.
  virtual void subtract(Vector y, ConstVector x, Stream& stream) = 0;
  virtual void fill_zero(Vector y, Stream& stream) = 0;
  /// Row by row, converting between dtypes.
  virtual void copy(ConstMatrix x, Matrix y, Stream& stream) = 0;

  /// Makes the rows of x orthonormal, one after another (Gram-Schmidt, each row twice, sums in fp64). A row
  /// that lies in the space of those before it, or is zero, is replaced by signs from a fixed sequence and
  /// made orthonormal to them; by zeros where rows >= cols leave no other direction. What is not finite stays
  /// so.   fp32 [R, N]
  virtual void orthonormalise_rows(Matrix x, Stream& stream) = 0;
  /// Moves the values.size elements of largest magnitude out of x: values and indices list them in ascending
  /// order of index, and x is zero there. Of equal magnitudes the lowest index comes first; a NaN is larger
  /// than any number.   fp32; x has at most 2^32 elements
  virtual void take_largest(Vector x, Vector values, std::span<std::uint32_t> indices, Stream& stream) = 0;
  /// y[indices[i]] += values[i]; no index occurs twice.   fp32
  virtual void scatter_add(Vector y, ConstVector values, std::span<const std::uint32_t> indices,
                           Stream& stream) = 0;

  /// Makes what a text has already said less likely, before the next token is chosen: logits[id] is divided
  /// by `penalty` where it is positive, and multiplied by it where it is not, for each of the ids, which are
  /// distinct. An id that has no logit is an error on cpu, and ignored on a GPU.
  ///   logits fp32 [V], ids in device memory, penalty > 0. Source: Keskar et al. 2019 (CTRL),
  ///   arXiv:1909.05858.
  virtual void penalise_repeats(Vector logits, std::span<const std::int32_t> ids, float penalty,
                                Stream& stream) = 0;
  /// The next token of each row. A token's weight is TokenWeight's (cartan/device/sampling.hpp). Of the top_k
  /// largest logits it keeps the smallest set of the largest that has at least top_p of their weight; of
  /// equal logits, those of the lowest ids. tokens[t] is the first kept id, in ascending order, whose weight
  /// and those before add up to more than uniforms[t] of all that is kept; at temperature 0 the first of the
  /// largest logit. Every device chooses alike. -1 where the row has a NaN, or no largest logit that is
  /// finite.
  ///   logits fp32 [T, V], V from 1 to kMostLogits; uniforms [T] in [0, 1), tokens [T], in device memory
  /// Sources: Fan, Lewis and Dauphin 2018, arXiv:1805.04833 (top-k); Holtzman et al. 2020, arXiv:1904.09751
  /// (top-p).
  virtual void sample(ConstMatrix logits, std::span<const double> uniforms, const SamplingRule& rule,
                      std::span<std::int32_t> tokens, Stream& stream) = 0;

  /// Whether every element is finite. Blocks the host; for diagnosis only.
  virtual bool all_finite(ConstMatrix x, Stream& stream) = 0;
};

}  // namespace cartan::device
