// Checks shapes at once, in the caller; then enqueues. On the compute stream, which is inline, that is a
// call.
#include "device/cpu/cpu_ops.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "cartan/core/error.hpp"
#include "cartan/core/exact_sum.hpp"
#include "device/checks.hpp"
#include "device/cpu/attention.hpp"
#include "device/cpu/compression.hpp"
#include "device/cpu/decision.hpp"
#include "device/cpu/linear.hpp"
#include "device/cpu/rows.hpp"
#include "device/cpu/sampling.hpp"

namespace cartan::device::cpu {

CpuOps::CpuOps(int threads, std::byte* scratch, const Stream& compute_stream,
               Gemm::Bf16Products bf16_products)
    : compute_stream_(compute_stream),
      compute_(threads, scratch, bf16_products),
      beside_(1, scratch + static_cast<std::size_t>(threads) * kScratchBytes, bf16_products) {}

template <class Work>
void CpuOps::enqueue(Stream& stream, Work work) {
  auto* const host = dynamic_cast<HostStream*>(&stream);
  if (host == nullptr) throw InternalError("stream {} does not belong to the cpu device", stream.name());
  Lane& lane = &stream == &compute_stream_ ? compute_ : beside_;
  host->submit([&lane, work = std::move(work)] {
    const std::lock_guard lock(lane.mutex);
    work(lane.context, lane.gemm);
  });
}

void CpuOps::embedding_forward(std::span<const std::int32_t> ids, ConstMatrix table, Index first, Matrix out,
                               Stream& stream) {
  check::embedding_forward(ids, table, first, out);
  enqueue(stream, [=](const Context& c, Gemm&) { cpu::embedding_forward(c, ids, table, first, out); });
}

void CpuOps::embedding_backward(std::span<const std::int32_t> ids, ConstMatrix dout, SequenceShape shape,
                                Index first, Index vocab, const GradientView& dtable, Stream& stream) {
  check::embedding_backward(ids, dout, shape, first, vocab, dtable);
  enqueue(stream, [=](const Context& c, Gemm&) {
    cpu::embedding_backward(c, ids, dout, shape, first, vocab, dtable);
  });
}

void CpuOps::rmsnorm_forward(ConstMatrix x, ConstVector weight, float eps, Matrix y, Vector inv_rms,
                             Stream& stream) {
  check::rmsnorm_forward(x, weight, y, inv_rms);
  enqueue(stream, [=](const Context& c, Gemm&) { cpu::rmsnorm_forward(c, x, weight, eps, y, inv_rms); });
}

void CpuOps::rmsnorm_backward(ConstMatrix x, ConstVector weight, ConstVector inv_rms, ConstMatrix dy,
                              Matrix dx, bool accumulate, SequenceShape shape, const GradientView& dweight,
                              Stream& stream) {
  check::rmsnorm_backward(x, weight, inv_rms, dy, dx, shape, dweight);
  enqueue(stream, [=](const Context& c, Gemm&) {
    cpu::rmsnorm_backward(c, x, weight, inv_rms, dy, dx, accumulate, shape, dweight);
  });
}

void CpuOps::to_fp8(ConstMatrix x, Matrix codes, bool transposed, const Fp8Scale& scale, Stream& stream) {
  check::to_fp8(x, codes, transposed, scale);
  enqueue(stream, [=](const Context& c, Gemm&) { cpu::to_fp8(c, x, codes, transposed, scale); });
}

void CpuOps::linear_forward(ConstMatrix x, ConstMatrix w, ConstVector bias, Matrix y, bool accumulate,
                            SequenceShape shape, Stream& stream) {
  check::linear_forward(x, w, bias, y, shape);
  enqueue(stream, [=](const Context& c, Gemm& gemm) {
    cpu::linear_forward(c, gemm, x, w, bias, y, accumulate, shape);
  });
}

void CpuOps::linear_backward_input(ConstMatrix dy, ConstMatrix w, Matrix dx, bool accumulate,
                                   SequenceShape shape, Stream& stream) {
  check::linear_backward_input(dy, w, dx, shape);
  enqueue(stream, [=](const Context& c, Gemm& gemm) {
    cpu::linear_backward_input(c, gemm, dy, w, dx, accumulate, shape);
  });
}

void CpuOps::linear_backward_weight(ConstMatrix dy, ConstMatrix x, SequenceShape shape,
                                    const GradientView& dw, const GradientView& dbias, Stream& stream) {
  check::linear_backward_weight(dy, x, shape, dw, dbias);
  enqueue(stream, [=](const Context& c, Gemm& gemm) {
    cpu::linear_backward_weight(c, gemm, dy, x, shape, dw, dbias);
  });
}

void CpuOps::column_sums(ConstMatrix dy, SequenceShape shape, const GradientView& dbias, Stream& stream) {
  check::column_sums(dy, shape, dbias);
  enqueue(stream, [=](const Context& c, Gemm&) { cpu::column_sums(c, dy, shape, dbias); });
}

void CpuOps::rope(Matrix x, Index head_dim, std::span<const std::int32_t> positions, ConstMatrix cosines,
                  ConstMatrix sines, bool inverse, Stream& stream) {
  check::rope(x, head_dim, positions, cosines, sines);
  enqueue(stream,
          [=](const Context& c, Gemm&) { cpu::rope(c, x, head_dim, positions, cosines, sines, inverse); });
}

void CpuOps::attention_forward(const AttentionShape& shape, ConstMatrix q, ConstMatrix k, ConstMatrix v,
                               std::span<const std::int32_t> document_start, Matrix out, Vector log_sum_exp,
                               Stream& stream) {
  check::attention_forward(shape, q, k, v, document_start, out, log_sum_exp);
  enqueue(stream, [=](const Context& c, Gemm&) {
    cpu::attention_forward(c, shape, q, k, v, document_start, out, log_sum_exp);
  });
}

void CpuOps::attention_backward(const AttentionShape& shape, ConstMatrix q, ConstMatrix k, ConstMatrix v,
                                ConstMatrix out, ConstVector log_sum_exp,
                                std::span<const std::int32_t> document_start, ConstMatrix dout, Matrix dq,
                                bool accumulate_dq, Matrix dk, Matrix dv, bool accumulate_dkv,
                                Stream& stream) {
  check::attention_backward(shape, q, k, v, out, log_sum_exp, document_start, dout, dq, dk, dv);
  enqueue(stream, [=](const Context& c, Gemm&) {
    cpu::attention_backward(c, shape, q, k, v, out, log_sum_exp, document_start, dout, dq, accumulate_dq, dk,
                            dv, accumulate_dkv);
  });
}

void CpuOps::attention_merge(Matrix out_sum, Vector lse_sum, ConstMatrix out, ConstVector log_sum_exp,
                             Index head_dim, Stream& stream) {
  check::attention_merge(out_sum, lse_sum, out, log_sum_exp, head_dim);
  enqueue(stream, [=](const Context& c, Gemm&) {
    cpu::attention_merge(c, out_sum, lse_sum, out, log_sum_exp, head_dim);
  });
}

void CpuOps::swiglu_forward(ConstMatrix gate_up, Matrix y, Stream& stream) {
  check::swiglu_forward(gate_up, y);
  enqueue(stream, [=](const Context& c, Gemm&) { cpu::swiglu_forward(c, gate_up, y); });
}

void CpuOps::swiglu_backward(ConstMatrix gate_up, ConstMatrix dy, Matrix dgate_up, Matrix y, Stream& stream) {
  check::swiglu_backward(gate_up, dy, dgate_up, y);
  enqueue(stream, [=](const Context& c, Gemm&) { cpu::swiglu_backward(c, gate_up, dy, dgate_up, y); });
}

void CpuOps::cross_entropy(ConstMatrix logits, std::span<const std::int32_t> targets, Vector row_loss,
                           Matrix dlogits, const float* scale, Stream& stream) {
  check::cross_entropy(logits, targets, row_loss, dlogits);
  enqueue(stream,
          [=](const Context& c, Gemm&) { cpu::cross_entropy(c, logits, targets, row_loss, dlogits, scale); });
}

void CpuOps::cross_entropy_stats(ConstMatrix logits, std::span<const std::int32_t> targets, Index first,
                                 Vector row_max, Vector row_sum, Vector target_logit, Stream& stream) {
  check::cross_entropy_stats(logits, targets, first, row_max, row_sum, target_logit);
  enqueue(stream, [=](const Context& c, Gemm&) {
    cpu::cross_entropy_stats(c, logits, targets, first, row_max, row_sum, target_logit);
  });
}

void CpuOps::cross_entropy_combine(ConstMatrix stacked, Index parts, Vector row_max, Vector row_sum,
                                   Vector target_logit, Stream& stream) {
  check::cross_entropy_combine(stacked, parts, row_max, row_sum, target_logit);
  enqueue(stream, [=](const Context& c, Gemm&) {
    cpu::cross_entropy_combine(c, stacked, parts, row_max, row_sum, target_logit);
  });
}

void CpuOps::cross_entropy_finish(ConstMatrix logits, std::span<const std::int32_t> targets, Index first,
                                  ConstVector row_max, ConstVector row_sum, ConstVector target_logit,
                                  Vector row_loss, Matrix dlogits, const float* scale, Stream& stream) {
  check::cross_entropy_finish(logits, targets, first, row_max, row_sum, target_logit, row_loss, dlogits);
  enqueue(stream, [=](const Context& c, Gemm&) {
    cpu::cross_entropy_finish(c, logits, targets, first, row_max, row_sum, target_logit, row_loss, dlogits,
                              scale);
  });
}

void CpuOps::adamw(Vector master, ConstVector gradient, Vector exp_avg, Vector exp_avg_sq, Vector compute,
                   const AdamWStep& step, const UpdateDecision* decision, Stream& stream) {
  check::adamw(master, gradient, exp_avg, exp_avg_sq, compute);
  enqueue(stream, [=](const Context& c, Gemm&) {
    cpu::adamw(c, master, gradient, exp_avg, exp_avg_sq, compute, step, decision);
  });
}

void CpuOps::square_sums(ConstVector x, std::span<double> sums, Stream& stream) {
  check::square_sums(x, sums);
  enqueue(stream, [=](const Context& c, Gemm&) { cpu::square_sums(c, x, sums); });
}

void CpuOps::exact_sum(std::span<const double> values, std::span<std::int64_t> words, Stream& stream) {
  check::exact_words("exact_sum", words);
  enqueue(stream, [=](const Context&, Gemm&) {
    ExactSum sum;
    for (const double value : values) sum.add(value);
    std::ranges::copy(sum.words(), words.begin());
  });
}

void CpuOps::decide_update(std::span<const std::int64_t> words, const UpdateRule& rule,
                           const float* loss_scale, UpdateDecision* decision, Stream& stream) {
  check::exact_words("decide_update", words);
  enqueue(stream, [=](const Context&, Gemm&) { *decision = cpu::decide_update(words, rule, loss_scale); });
}

void CpuOps::update_loss_scale(const UpdateDecision* decision, const LossScaleRule& rule,
                               LossScaleState* state, float* of_loss, Stream& stream) {
  enqueue(stream, [=](const Context&, Gemm&) {
    move_loss_scale(*state, rule, decision->is_applied == 0);
    *of_loss = static_cast<float>(state->scale * rule.share);
  });
}

void CpuOps::tree_sum(std::span<const float* const> values, std::span<const int> merges, float* out,
                      Index count, Stream& stream) {
  check::tree_sum(values, merges, count);
  // The lists are short and often made for the call: the task keeps its own.
  enqueue(stream, [values = std::vector<const float*>(values.begin(), values.end()),
                   merges = std::vector<int>(merges.begin(), merges.end()), out,
                   count](const Context& c, Gemm&) { cpu::tree_sum(c, values, merges, out, count); });
}

void CpuOps::sum_parts(ConstMatrix stacked, Index parts, ConstMatrix residual, Matrix out, Stream& stream) {
  check::sum_parts(stacked, parts, residual, out);
  enqueue(stream, [=](const Context& c, Gemm&) { cpu::sum_parts(c, stacked, parts, residual, out); });
}

void CpuOps::dropout(ConstMatrix x, std::span<const std::int32_t> rows, const DropoutRule& rule, Matrix out,
                     Stream& stream) {
  check::dropout(x, rows, rule, out);
  enqueue(stream, [=](const Context& c, Gemm&) { cpu::dropout(c, x, rows, rule, out); });
}

void CpuOps::add(Vector y, ConstVector x, Stream& stream) {
  check::add(y, x);
  enqueue(stream, [=](const Context& c, Gemm&) { cpu::add(c, y, x); });
}

void CpuOps::subtract(Vector y, ConstVector x, Stream& stream) {
  check::subtract(y, x);
  enqueue(stream, [=](const Context& c, Gemm&) { cpu::subtract(c, y, x); });
}

void CpuOps::fill_zero(Vector y, Stream& stream) {
  enqueue(stream, [=](const Context& c, Gemm&) { cpu::fill_zero(c, y); });
}

void CpuOps::copy(ConstMatrix x, Matrix y, Stream& stream) {
  check::copy(x, y);
  enqueue(stream, [=](const Context& c, Gemm&) { cpu::copy(c, x, y); });
}

void CpuOps::orthonormalise_rows(Matrix x, Stream& stream) {
  check::orthonormalise_rows(x);
  enqueue(stream, [=](const Context&, Gemm&) { cpu::orthonormalise_rows(x); });
}

void CpuOps::take_largest(Vector x, Vector values, std::span<std::uint32_t> indices, Stream& stream) {
  check::take_largest(x, values, indices);
  enqueue(stream, [=](const Context&, Gemm&) { cpu::take_largest(x, values, indices); });
}

void CpuOps::scatter_add(Vector y, ConstVector values, std::span<const std::uint32_t> indices,
                         Stream& stream) {
  check::scatter_add(y, values, indices);
  enqueue(stream, [=](const Context&, Gemm&) { cpu::scatter_add(y, values, indices); });
}

void CpuOps::penalise_repeats(Vector logits, std::span<const std::int32_t> ids, float penalty,
                              Stream& stream) {
  check::penalise_repeats(logits, ids, penalty);
  enqueue(stream, [=](const Context&, Gemm&) { cpu::penalise_repeats(logits, ids, penalty); });
}

void CpuOps::sample(ConstMatrix logits, std::span<const double> uniforms, const SamplingRule& rule,
                    std::span<std::int32_t> tokens, Stream& stream) {
  check::sample(logits, uniforms, rule, tokens);
  enqueue(stream, [=](const Context& c, Gemm&) { cpu::sample(c, logits, uniforms, rule, tokens); });
}

bool CpuOps::all_finite(ConstMatrix x, Stream& stream) {
  bool result = false;
  enqueue(stream, [x, &result](const Context& c, Gemm&) { result = cpu::all_finite(c, x); });
  stream.synchronize();
  return result;
}

}  // namespace cartan::device::cpu
