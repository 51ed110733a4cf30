#include "device/cuda/cuda_ops.hpp"

#include "device/checks.hpp"
#include "device/cuda/scratch_bytes.hpp"
#include "kernels/adamw.hpp"
#include "kernels/attention.hpp"
#include "kernels/compression.hpp"
#include "kernels/cross_entropy.hpp"
#include "kernels/decision.hpp"
#include "kernels/dropout.hpp"
#include "kernels/embedding.hpp"
#include "kernels/fp8.hpp"
#include "kernels/move.hpp"
#include "kernels/norm.hpp"
#include "kernels/rope.hpp"
#include "kernels/sampling.hpp"
#include "kernels/sums.hpp"
#include "kernels/swiglu.hpp"

namespace cartan::device::cuda {
namespace {

constexpr std::size_t kLaneBytes = kGemmWorkspaceBytes + kLeafBytes + kernels::kScratchBytes;
static_assert(2 * kLaneBytes == kDeviceScratchBytes);

cudaStream_t native(Stream& stream) { return cuda_stream(stream).native(); }

}  // namespace

CudaOps::CudaOps(std::byte* scratch, const Stream& compute_stream, Staging& staging)
    : compute_stream_(compute_stream),
      staging_(staging),
      compute_(make_lane(scratch)),
      beside_(make_lane(scratch)) {}

CudaOps::Lane CudaOps::make_lane(std::byte*& scratch) {
  const auto take = [&](std::size_t bytes) {
    const kernels::Scratch piece{scratch, bytes};
    scratch += bytes;
    return piece;
  };
  Lane lane;
  lane.room = {take(kGemmWorkspaceBytes), take(kLeafBytes), take(kernels::kScratchBytes)};
  return lane;
}

CudaOps::Lane& CudaOps::lane_of(Stream& stream) {
  if (&stream == &compute_stream_) return compute_;
  if (beside_.last != &stream) stream.wait(beside_.done);
  beside_.last = &stream;
  return beside_;
}

void CudaOps::leave(Lane& lane, Stream& stream) const {
  if (&lane == &beside_) lane.done = stream.record();
}

void CudaOps::embedding_forward(std::span<const std::int32_t> ids, ConstMatrix table, Index first, Matrix out,
                                Stream& stream) {
  check::embedding_forward(ids, table, first, out);
  kernels::embedding_forward(ids, table, first, out, native(stream));
}

void CudaOps::embedding_backward(std::span<const std::int32_t> ids, ConstMatrix dout, SequenceShape shape,
                                 Index first, Index vocab, const GradientView& dtable, Stream& stream) {
  check::embedding_backward(ids, dout, shape, first, vocab, dtable);
  Lane& lane = lane_of(stream);
  kernels::embedding_backward(ids, dout, shape, first, vocab, dtable, lane.room.kernels, native(stream));
  leave(lane, stream);
}

void CudaOps::rmsnorm_forward(ConstMatrix x, ConstVector weight, float eps, Matrix y, Vector inv_rms,
                              Stream& stream) {
  check::rmsnorm_forward(x, weight, y, inv_rms);
  kernels::rmsnorm_forward(x, weight, eps, y, inv_rms, native(stream));
}

void CudaOps::rmsnorm_backward(ConstMatrix x, ConstVector weight, ConstVector inv_rms, ConstMatrix dy,
                               Matrix dx, bool accumulate, SequenceShape shape, const GradientView& dweight,
                               Stream& stream) {
  check::rmsnorm_backward(x, weight, inv_rms, dy, dx, shape, dweight);
  Lane& lane = lane_of(stream);
  kernels::rmsnorm_backward(x, weight, inv_rms, dy, dx, accumulate, shape, dweight, lane.room.kernels,
                            native(stream));
  leave(lane, stream);
}

void CudaOps::to_fp8(ConstMatrix x, Matrix codes, bool transposed, const Fp8Scale& scale, Stream& stream) {
  check::to_fp8(x, codes, transposed, scale);
  kernels::to_fp8(x, codes, transposed, scale, native(stream));
}

void CudaOps::linear_forward(ConstMatrix x, ConstMatrix w, ConstVector bias, Matrix y, bool accumulate,
                             SequenceShape shape, Stream& stream) {
  check::linear_forward(x, w, bias, y, shape);
  Lane& lane = lane_of(stream);
  cuda::linear_forward(gemm_, x, w, bias, y, accumulate, shape, lane.room, native(stream));
  leave(lane, stream);
}

void CudaOps::linear_backward_input(ConstMatrix dy, ConstMatrix w, Matrix dx, bool accumulate,
                                    SequenceShape shape, Stream& stream) {
  check::linear_backward_input(dy, w, dx, shape);
  Lane& lane = lane_of(stream);
  cuda::linear_backward_input(gemm_, dy, w, dx, accumulate, shape, lane.room, native(stream));
  leave(lane, stream);
}

void CudaOps::linear_backward_weight(ConstMatrix dy, ConstMatrix x, SequenceShape shape,
                                     const GradientView& dw, const GradientView& dbias, Stream& stream) {
  check::linear_backward_weight(dy, x, shape, dw, dbias);
  Lane& lane = lane_of(stream);
  cuda::linear_backward_weight(gemm_, dy, x, shape, dw, dbias, lane.room, native(stream));
  leave(lane, stream);
}

void CudaOps::column_sums(ConstMatrix dy, SequenceShape shape, const GradientView& dbias, Stream& stream) {
  check::column_sums(dy, shape, dbias);
  Lane& lane = lane_of(stream);
  kernels::fold_columns(dy, shape, dbias, lane.room.kernels, native(stream));
  leave(lane, stream);
}

void CudaOps::rope(Matrix x, Index head_dim, std::span<const std::int32_t> positions, ConstMatrix cosines,
                   ConstMatrix sines, bool inverse, Stream& stream) {
  check::rope(x, head_dim, positions, cosines, sines);
  kernels::rope(x, head_dim, positions, cosines, sines, inverse, native(stream));
}

void CudaOps::attention_forward(const AttentionShape& shape, ConstMatrix q, ConstMatrix k, ConstMatrix v,
                                std::span<const std::int32_t> document_start, Matrix out, Vector log_sum_exp,
                                Stream& stream) {
  check::attention_forward(shape, q, k, v, document_start, out, log_sum_exp);
  kernels::attention_forward(shape, q, k, v, document_start, out, log_sum_exp, native(stream));
}

void CudaOps::attention_merge(Matrix out_sum, Vector lse_sum, ConstMatrix out, ConstVector log_sum_exp,
                              Index head_dim, Stream& stream) {
  check::attention_merge(out_sum, lse_sum, out, log_sum_exp, head_dim);
  kernels::attention_merge(out_sum, lse_sum, out, log_sum_exp, head_dim, native(stream));
}

void CudaOps::attention_backward(const AttentionShape& shape, ConstMatrix q, ConstMatrix k, ConstMatrix v,
                                 ConstMatrix out, ConstVector log_sum_exp,
                                 std::span<const std::int32_t> document_start, ConstMatrix dout, Matrix dq,
                                 bool accumulate_dq, Matrix dk, Matrix dv, bool accumulate_dkv,
                                 Stream& stream) {
  check::attention_backward(shape, q, k, v, out, log_sum_exp, document_start, dout, dq, dk, dv);
  Lane& lane = lane_of(stream);
  kernels::attention_backward(shape, q, k, v, out, log_sum_exp, document_start, dout, dq, accumulate_dq, dk,
                              dv, accumulate_dkv, lane.room.kernels, native(stream));
  leave(lane, stream);
}

void CudaOps::swiglu_forward(ConstMatrix gate_up, Matrix y, Stream& stream) {
  check::swiglu_forward(gate_up, y);
  kernels::swiglu_forward(gate_up, y, native(stream));
}

void CudaOps::swiglu_backward(ConstMatrix gate_up, ConstMatrix dy, Matrix dgate_up, Matrix y,
                              Stream& stream) {
  check::swiglu_backward(gate_up, dy, dgate_up, y);
  kernels::swiglu_backward(gate_up, dy, dgate_up, y, native(stream));
}

void CudaOps::cross_entropy(ConstMatrix logits, std::span<const std::int32_t> targets, Vector row_loss,
                            Matrix dlogits, const float* scale, Stream& stream) {
  check::cross_entropy(logits, targets, row_loss, dlogits);
  kernels::cross_entropy(logits, targets, row_loss, dlogits, scale, native(stream));
}

void CudaOps::cross_entropy_stats(ConstMatrix logits, std::span<const std::int32_t> targets, Index first,
                                  Vector row_max, Vector row_sum, Vector target_logit, Stream& stream) {
  check::cross_entropy_stats(logits, targets, first, row_max, row_sum, target_logit);
  kernels::cross_entropy_stats(logits, targets, first, row_max, row_sum, target_logit, native(stream));
}

void CudaOps::cross_entropy_combine(ConstMatrix stacked, Index parts, Vector row_max, Vector row_sum,
                                    Vector target_logit, Stream& stream) {
  check::cross_entropy_combine(stacked, parts, row_max, row_sum, target_logit);
  kernels::cross_entropy_combine(stacked, parts, row_max, row_sum, target_logit, native(stream));
}

void CudaOps::cross_entropy_finish(ConstMatrix logits, std::span<const std::int32_t> targets, Index first,
                                   ConstVector row_max, ConstVector row_sum, ConstVector target_logit,
                                   Vector row_loss, Matrix dlogits, const float* scale, Stream& stream) {
  check::cross_entropy_finish(logits, targets, first, row_max, row_sum, target_logit, row_loss, dlogits);
  kernels::cross_entropy_finish(logits, targets, first, row_max, row_sum, target_logit, row_loss, dlogits,
                                scale, native(stream));
}

void CudaOps::adamw(Vector master, ConstVector gradient, Vector exp_avg, Vector exp_avg_sq, Vector compute,
                    const AdamWStep& step, const UpdateDecision* decision, Stream& stream) {
  check::adamw(master, gradient, exp_avg, exp_avg_sq, compute);
  kernels::adamw(master, gradient, exp_avg, exp_avg_sq, compute, step, decision, native(stream));
}

void CudaOps::exact_sum(std::span<const double> values, std::span<std::int64_t> words, Stream& stream) {
  check::exact_words("exact_sum", words);
  kernels::exact_sum(values, words, native(stream));
}

void CudaOps::decide_update(std::span<const std::int64_t> words, const UpdateRule& rule,
                            const float* loss_scale, UpdateDecision* decision, Stream& stream) {
  check::exact_words("decide_update", words);
  kernels::decide_update(words, rule, loss_scale, decision, native(stream));
}

void CudaOps::update_loss_scale(const UpdateDecision* decision, const LossScaleRule& rule,
                                LossScaleState* state, float* of_loss, Stream& stream) {
  kernels::update_loss_scale(decision, rule, state, of_loss, native(stream));
}

void CudaOps::square_sums(ConstVector x, std::span<double> sums, Stream& stream) {
  check::square_sums(x, sums);
  kernels::square_sums(x, sums, native(stream));
}

void CudaOps::tree_sum(std::span<const float* const> values, std::span<const int> merges, float* out,
                       Index count, Stream& stream) {
  check::tree_sum(values, merges, count);
  Lane& lane = lane_of(stream);
  kernels::tree_sum(values, merges, out, count, lane.room.kernels, native(stream));
  leave(lane, stream);
}

void CudaOps::sum_parts(ConstMatrix stacked, Index parts, ConstMatrix residual, Matrix out, Stream& stream) {
  check::sum_parts(stacked, parts, residual, out);
  kernels::sum_parts(stacked, parts, residual, out, native(stream));
}

void CudaOps::dropout(ConstMatrix x, std::span<const std::int32_t> rows, const DropoutRule& rule, Matrix out,
                      Stream& stream) {
  check::dropout(x, rows, rule, out);
  kernels::dropout(x, rows, rule, out, native(stream));
}

void CudaOps::add(Vector y, ConstVector x, Stream& stream) {
  check::add(y, x);
  kernels::add(y, x, native(stream));
}

void CudaOps::subtract(Vector y, ConstVector x, Stream& stream) {
  check::subtract(y, x);
  kernels::subtract(y, x, native(stream));
}

void CudaOps::fill_zero(Vector y, Stream& stream) { kernels::fill_zero(y, native(stream)); }

void CudaOps::copy(ConstMatrix x, Matrix y, Stream& stream) {
  check::copy(x, y);
  kernels::copy(x, y, native(stream));
}

void CudaOps::orthonormalise_rows(Matrix x, Stream& stream) {
  check::orthonormalise_rows(x);
  Lane& lane = lane_of(stream);
  kernels::orthonormalise_rows(x, lane.room.kernels, native(stream));
  leave(lane, stream);
}

void CudaOps::take_largest(Vector x, Vector values, std::span<std::uint32_t> indices, Stream& stream) {
  check::take_largest(x, values, indices);
  Lane& lane = lane_of(stream);
  kernels::take_largest(x, values, indices, lane.room.kernels, native(stream));
  leave(lane, stream);
}

void CudaOps::scatter_add(Vector y, ConstVector values, std::span<const std::uint32_t> indices,
                          Stream& stream) {
  check::scatter_add(y, values, indices);
  kernels::scatter_add(y, values, indices, native(stream));
}

void CudaOps::penalise_repeats(Vector logits, std::span<const std::int32_t> ids, float penalty,
                               Stream& stream) {
  check::penalise_repeats(logits, ids, penalty);
  if (!ids.empty()) kernels::penalise_repeats(logits, ids, penalty, native(stream));
}

void CudaOps::sample(ConstMatrix logits, std::span<const double> uniforms, const SamplingRule& rule,
                     std::span<std::int32_t> tokens, Stream& stream) {
  check::sample(logits, uniforms, rule, tokens);
  kernels::sample(logits, uniforms, rule, tokens, native(stream));
}

bool CudaOps::all_finite(ConstMatrix x, Stream& stream) {
  Lane& lane = lane_of(stream);
  auto* const flag = lane.room.kernels.as<std::int32_t>();
  std::int32_t found = 0;
  kernels::fill_zero({flag, DType::f32, 1}, native(stream));
  kernels::find_nonfinite(x, flag, native(stream));
  staging_.copy_out(&found, flag, sizeof found, native(stream));
  leave(lane, stream);
  return found == 0;
}

}  // namespace cartan::device::cuda
