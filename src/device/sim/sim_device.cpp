// The counting device: shapes are checked, memory is booked, FLOPs are added up, nothing is computed.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "cartan/core/error.hpp"
#include "cartan/device/device.hpp"
#include "device/checks.hpp"
#include "device/cpu/cpu_device.hpp"
#include "device/cpu/machine.hpp"
#include "device/cuda/scratch_bytes.hpp"

namespace cartan::device {
namespace {

/// Query-key pairs that causal attention looks at, over all sequences and heads. Document boundaries are not
/// subtracted: the count depends on shapes only.
double attention_pairs(const AttentionShape& s) {
  // Of the first `count` queries from the first key on: a triangle until all keys are seen, then whole rows.
  const auto pairs_before = [keys = s.k_length](Index count) {
    const auto rising = static_cast<double>(std::clamp<Index>(count, 0, keys));
    const auto whole = static_cast<double>(std::max<Index>(count - keys, 0));
    return rising * (rising + 1) / 2 + whole * static_cast<double>(keys);
  };
  const Index begin = s.q_first - s.k_first;
  return static_cast<double>(s.sequences * s.heads) *
         (pairs_before(begin + s.q_length) - pairs_before(begin));
}

class SimOps : public Ops {
 public:
  SimCounts counts;

  void embedding_forward(std::span<const std::int32_t> ids, ConstMatrix table, Index first, Matrix out,
                         Stream&) override {
    check::embedding_forward(ids, table, first, out);
  }
  void embedding_backward(std::span<const std::int32_t> ids, ConstMatrix dout, SequenceShape shape,
                          Index first, Index vocab, const GradientView& dtable, Stream&) override {
    check::embedding_backward(ids, dout, shape, first, vocab, dtable);
  }
  void rmsnorm_forward(ConstMatrix x, ConstVector weight, float, Matrix y, Vector inv_rms, Stream&) override {
    check::rmsnorm_forward(x, weight, y, inv_rms);
  }
  void rmsnorm_backward(ConstMatrix x, ConstVector weight, ConstVector inv_rms, ConstMatrix dy, Matrix dx,
                        bool, SequenceShape shape, const GradientView& dweight, Stream&) override {
    check::rmsnorm_backward(x, weight, inv_rms, dy, dx, shape, dweight);
  }
  void to_fp8(ConstMatrix x, Matrix codes, bool transposed, const Fp8Scale& scale, Stream&) override {
    check::to_fp8(x, codes, transposed, scale);
  }
  void linear_forward(ConstMatrix x, ConstMatrix w, ConstVector bias, Matrix y, bool, SequenceShape shape,
                      Stream&) override {
    check::linear_forward(x, w, bias, y, shape);
    count_product(x.rows, w.rows, w.cols);
  }
  void linear_backward_input(ConstMatrix dy, ConstMatrix w, Matrix dx, bool, SequenceShape shape,
                             Stream&) override {
    check::linear_backward_input(dy, w, dx, shape);
    count_product(dy.rows, w.cols, w.rows);  // whichever way round w is
  }
  void linear_backward_weight(ConstMatrix dy, ConstMatrix x, SequenceShape shape, const GradientView& dw,
                              const GradientView& dbias, Stream&) override {
    check::linear_backward_weight(dy, x, shape, dw, dbias);
    const bool transposed = has_8_bits(dy.dtype);
    count_product(transposed ? dy.rows : dy.cols, transposed ? x.rows : x.cols, shape.tokens());
  }
  void column_sums(ConstMatrix dy, SequenceShape shape, const GradientView& dbias, Stream&) override {
    check::column_sums(dy, shape, dbias);
  }
  void rope(Matrix x, Index head_dim, std::span<const std::int32_t> positions, ConstMatrix cosines,
            ConstMatrix sines, bool, Stream&) override {
    check::rope(x, head_dim, positions, cosines, sines);
  }
  /// Two products (scores, output): four FLOPs for each pair and channel.
  void attention_forward(const AttentionShape& shape, ConstMatrix q, ConstMatrix k, ConstMatrix v,
                         std::span<const std::int32_t> document_start, Matrix out, Vector log_sum_exp,
                         Stream&) override {
    check::attention_forward(shape, q, k, v, document_start, out, log_sum_exp);
    counts.attention_flops += 4 * attention_pairs(shape) * static_cast<double>(shape.head_dim);
  }
  /// Five products: the scores once more, and the gradients of output, values, queries and keys.
  void attention_backward(const AttentionShape& shape, ConstMatrix q, ConstMatrix k, ConstMatrix v,
                          ConstMatrix out, ConstVector log_sum_exp,
                          std::span<const std::int32_t> document_start, ConstMatrix dout, Matrix dq, bool,
                          Matrix dk, Matrix dv, bool, Stream&) override {
    check::attention_backward(shape, q, k, v, out, log_sum_exp, document_start, dout, dq, dk, dv);
    counts.attention_flops += 10 * attention_pairs(shape) * static_cast<double>(shape.head_dim);
  }
  void attention_merge(Matrix out_sum, Vector lse_sum, ConstMatrix out, ConstVector log_sum_exp,
                       Index head_dim, Stream&) override {
    check::attention_merge(out_sum, lse_sum, out, log_sum_exp, head_dim);
  }
  void swiglu_forward(ConstMatrix gate_up, Matrix y, Stream&) override { check::swiglu_forward(gate_up, y); }
  void swiglu_backward(ConstMatrix gate_up, ConstMatrix dy, Matrix dgate_up, Matrix y, Stream&) override {
    check::swiglu_backward(gate_up, dy, dgate_up, y);
  }
  void cross_entropy(ConstMatrix logits, std::span<const std::int32_t> targets, Vector row_loss,
                     Matrix dlogits, const float*, Stream&) override {
    check::cross_entropy(logits, targets, row_loss, dlogits);
  }
  void cross_entropy_stats(ConstMatrix logits, std::span<const std::int32_t> targets, Index first,
                           Vector row_max, Vector row_sum, Vector target_logit, Stream&) override {
    check::cross_entropy_stats(logits, targets, first, row_max, row_sum, target_logit);
  }
  void cross_entropy_combine(ConstMatrix stacked, Index parts, Vector row_max, Vector row_sum,
                             Vector target_logit, Stream&) override {
    check::cross_entropy_combine(stacked, parts, row_max, row_sum, target_logit);
  }
  void cross_entropy_finish(ConstMatrix logits, std::span<const std::int32_t> targets, Index first,
                            ConstVector row_max, ConstVector row_sum, ConstVector target_logit,
                            Vector row_loss, Matrix dlogits, const float*, Stream&) override {
    check::cross_entropy_finish(logits, targets, first, row_max, row_sum, target_logit, row_loss, dlogits);
  }
  void adamw(Vector master, ConstVector gradient, Vector exp_avg, Vector exp_avg_sq, Vector compute,
             const AdamWStep&, const UpdateDecision*, Stream&) override {
    check::adamw(master, gradient, exp_avg, exp_avg_sq, compute);
  }
  /// The sums are host memory and may be read: 0.
  void square_sums(ConstVector x, std::span<double> sums, Stream&) override {
    check::square_sums(x, sums);
    for (double& sum : sums) sum = 0;
  }
  void exact_sum(std::span<const double>, std::span<std::int64_t> words, Stream&) override {
    check::exact_words("exact_sum", words);
  }
  void decide_update(std::span<const std::int64_t> words, const UpdateRule&, const float*, UpdateDecision*,
                     Stream&) override {
    check::exact_words("decide_update", words);
  }
  void update_loss_scale(const UpdateDecision*, const LossScaleRule&, LossScaleState*, float*,
                         Stream&) override {}
  void tree_sum(std::span<const float* const> values, std::span<const int> merges, float*, Index count,
                Stream&) override {
    check::tree_sum(values, merges, count);
  }
  void sum_parts(ConstMatrix stacked, Index parts, ConstMatrix residual, Matrix out, Stream&) override {
    check::sum_parts(stacked, parts, residual, out);
  }
  void dropout(ConstMatrix x, std::span<const std::int32_t> rows, const DropoutRule& rule, Matrix out,
               Stream&) override {
    check::dropout(x, rows, rule, out);
  }
  void add(Vector y, ConstVector x, Stream&) override { check::add(y, x); }
  void subtract(Vector y, ConstVector x, Stream&) override { check::subtract(y, x); }
  void fill_zero(Vector, Stream&) override {}
  void copy(ConstMatrix x, Matrix y, Stream&) override { check::copy(x, y); }
  void orthonormalise_rows(Matrix x, Stream&) override { check::orthonormalise_rows(x); }
  void take_largest(Vector x, Vector values, std::span<std::uint32_t> indices, Stream&) override {
    check::take_largest(x, values, indices);
  }
  void scatter_add(Vector y, ConstVector values, std::span<const std::uint32_t> indices, Stream&) override {
    check::scatter_add(y, values, indices);
  }
  void penalise_repeats(Vector logits, std::span<const std::int32_t> ids, float penalty, Stream&) override {
    check::penalise_repeats(logits, ids, penalty);
  }
  void sample(ConstMatrix logits, std::span<const double> uniforms, const SamplingRule& rule,
              std::span<std::int32_t> tokens, Stream&) override {
    check::sample(logits, uniforms, rule, tokens);
  }
  bool all_finite(ConstMatrix, Stream&) override { return true; }

 private:
  void count_product(Index m, Index n, Index k) {
    counts.matmul_flops += 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
};

class SimDeviceImplementation : public SimDevice {
 public:
  SimDeviceImplementation(DeviceKind imitated, int threads)
      : imitated_(imitated), threads_(threads), compute_stream_(make_inline_stream("compute")) {
    if (imitated == DeviceKind::cpu) {
      scratch_ =
          allocate(cpu::device_scratch_bytes(threads), MemoryKind::workspace, "scratch of the cpu threads");
    } else {
      scratch_ = allocate(cuda::kDeviceScratchBytes, MemoryKind::workspace, "scratch of the device");
    }
  }

  DeviceKind kind() const override { return DeviceKind::sim; }
  std::string description() const override {
    return imitated_ == DeviceKind::cuda
               ? "sim: counts what a cuda device would do"
               : fmt::format("sim: counts what a cpu device with {} threads would do", threads_);
  }

  /// Addresses are distinct, aligned, never reused, and in no process's address space.
  Buffer allocate(std::size_t size_bytes, MemoryKind kind, std::string_view) override {
    constexpr std::size_t kAlignment = 256;
    const std::uintptr_t address = next_address_.fetch_add((size_bytes / kAlignment + 1) * kAlignment);
    return {reinterpret_cast<void*>(address), size_bytes, kind, ledger_, nullptr};
  }

  Buffer allocate_offloaded(std::size_t size_bytes, std::string_view label) override {
    return allocate(size_bytes, MemoryKind::offloaded, label);
  }

  bool prefers_copies() const override { return imitated_ == DeviceKind::cuda; }
  MemoryLedger& ledger() override { return ledger_; }
  Index large_product() const override { return 512; }
  Stream& compute_stream() override { return *compute_stream_; }
  std::unique_ptr<Stream> make_stream(std::string_view name) override {
    return make_inline_stream(std::string(name));
  }
  void begin_range(const std::string&) override {}
  void end_range() noexcept override {}
  Ops& ops() override { return ops_; }
  const SimCounts& counts() const override { return ops_.counts; }
  DeviceKind imitated() const override { return imitated_; }

  void copy(void*, const void*, std::size_t, Stream&) override {}
  void copy_in(void*, const void*, std::size_t, Stream&) override {}
  /// Host memory may be read afterwards: zeros.
  void copy_out(void* host_destination, const void*, std::size_t size_bytes, Stream&) override {
    if (size_bytes > 0) std::memset(host_destination, 0, size_bytes);
  }

 private:
  DeviceKind imitated_;
  int threads_;
  std::atomic<std::uintptr_t> next_address_{std::uintptr_t{1} << 60};
  MemoryLedger ledger_;
  std::unique_ptr<HostStream> compute_stream_;
  SimOps ops_;
  Buffer scratch_;
};

}  // namespace

std::unique_ptr<SimDevice> make_sim_device(DeviceKind imitated, const DeviceOptions& options) {
  if (imitated == DeviceKind::sim) throw InternalError("the sim device imitates cpu or cuda, not itself");
  if (options.threads < 0)
    throw ConfigError("a device with {} threads: use 0 (all) or more", options.threads);
  return std::make_unique<SimDeviceImplementation>(
      imitated, options.threads == 0 ? cpu::default_threads() : options.threads);
}

}  // namespace cartan::device
