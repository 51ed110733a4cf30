// The table of operations on the host.
#pragma once

#include <mutex>

#include "cartan/device/ops.hpp"
#include "device/cpu/context.hpp"
#include "device/cpu/gemm.hpp"

namespace cartan::device::cpu {

/// Operations on the compute stream use all threads of the rank. Those on another stream run on that stream's
/// thread alone, with scratch memory of their own, so that a sum of gradients beside the computation waits
/// for nobody.
class CpuOps : public Ops {
 public:
  /// scratch: (threads + 1) * kScratchBytes, 64-byte aligned; must outlive this, as must the streams.
  CpuOps(int threads, std::byte* scratch, const Stream& compute_stream, Gemm::Bf16Products bf16_products);

  void embedding_forward(std::span<const std::int32_t> ids, ConstMatrix table, Index first, Matrix out,
                         Stream& stream) override;
  void embedding_backward(std::span<const std::int32_t> ids, ConstMatrix dout, SequenceShape shape,
                          Index first, Index vocab, const GradientView& dtable, Stream& stream) override;
  void rmsnorm_forward(ConstMatrix x, ConstVector weight, float eps, Matrix y, Vector inv_rms,
                       Stream& stream) override;
  void rmsnorm_backward(ConstMatrix x, ConstVector weight, ConstVector inv_rms, ConstMatrix dy, Matrix dx,
                        bool accumulate, SequenceShape shape, const GradientView& dweight,
                        Stream& stream) override;
  void to_fp8(ConstMatrix x, Matrix codes, bool transposed, const Fp8Scale& scale, Stream& stream) override;
  void linear_forward(ConstMatrix x, ConstMatrix w, ConstVector bias, Matrix y, bool accumulate,
                      SequenceShape shape, Stream& stream) override;
  void linear_backward_input(ConstMatrix dy, ConstMatrix w, Matrix dx, bool accumulate, SequenceShape shape,
                             Stream& stream) override;
  void linear_backward_weight(ConstMatrix dy, ConstMatrix x, SequenceShape shape, const GradientView& dw,
                              const GradientView& dbias, Stream& stream) override;
  void column_sums(ConstMatrix dy, SequenceShape shape, const GradientView& dbias, Stream& stream) override;
  void rope(Matrix x, Index head_dim, std::span<const std::int32_t> positions, ConstMatrix cosines,
            ConstMatrix sines, bool inverse, Stream& stream) override;
  void attention_forward(const AttentionShape& shape, ConstMatrix q, ConstMatrix k, ConstMatrix v,
                         std::span<const std::int32_t> document_start, Matrix out, Vector log_sum_exp,
                         Stream& stream) override;
  void attention_backward(const AttentionShape& shape, ConstMatrix q, ConstMatrix k, ConstMatrix v,
                          ConstMatrix out, ConstVector log_sum_exp,
                          std::span<const std::int32_t> document_start, ConstMatrix dout, Matrix dq,
                          bool accumulate_dq, Matrix dk, Matrix dv, bool accumulate_dkv,
                          Stream& stream) override;
  void attention_merge(Matrix out_sum, Vector lse_sum, ConstMatrix out, ConstVector log_sum_exp,
                       Index head_dim, Stream& stream) override;
  void swiglu_forward(ConstMatrix gate_up, Matrix y, Stream& stream) override;
  void swiglu_backward(ConstMatrix gate_up, ConstMatrix dy, Matrix dgate_up, Matrix y,
                       Stream& stream) override;
  void cross_entropy(ConstMatrix logits, std::span<const std::int32_t> targets, Vector row_loss,
                     Matrix dlogits, const float* scale, Stream& stream) override;
  void cross_entropy_stats(ConstMatrix logits, std::span<const std::int32_t> targets, Index first,
                           Vector row_max, Vector row_sum, Vector target_logit, Stream& stream) override;
  void cross_entropy_combine(ConstMatrix stacked, Index parts, Vector row_max, Vector row_sum,
                             Vector target_logit, Stream& stream) override;
  void cross_entropy_finish(ConstMatrix logits, std::span<const std::int32_t> targets, Index first,
                            ConstVector row_max, ConstVector row_sum, ConstVector target_logit,
                            Vector row_loss, Matrix dlogits, const float* scale, Stream& stream) override;
  void adamw(Vector master, ConstVector gradient, Vector exp_avg, Vector exp_avg_sq, Vector compute,
             const AdamWStep& step, const UpdateDecision* decision, Stream& stream) override;
  void square_sums(ConstVector x, std::span<double> sums, Stream& stream) override;
  void exact_sum(std::span<const double> values, std::span<std::int64_t> words, Stream& stream) override;
  void decide_update(std::span<const std::int64_t> words, const UpdateRule& rule, const float* loss_scale,
                     UpdateDecision* decision, Stream& stream) override;
  void update_loss_scale(const UpdateDecision* decision, const LossScaleRule& rule, LossScaleState* state,
                         float* of_loss, Stream& stream) override;
  void tree_sum(std::span<const float* const> values, std::span<const int> merges, float* out, Index count,
                Stream& stream) override;
  void sum_parts(ConstMatrix stacked, Index parts, ConstMatrix residual, Matrix out, Stream& stream) override;
  void dropout(ConstMatrix x, std::span<const std::int32_t> rows, const DropoutRule& rule, Matrix out,
               Stream& stream) override;
  void add(Vector y, ConstVector x, Stream& stream) override;
  void subtract(Vector y, ConstVector x, Stream& stream) override;
  void fill_zero(Vector y, Stream& stream) override;
  void copy(ConstMatrix x, Matrix y, Stream& stream) override;
  void orthonormalise_rows(Matrix x, Stream& stream) override;
  void take_largest(Vector x, Vector values, std::span<std::uint32_t> indices, Stream& stream) override;
  void scatter_add(Vector y, ConstVector values, std::span<const std::uint32_t> indices,
                   Stream& stream) override;
  void penalise_repeats(Vector logits, std::span<const std::int32_t> ids, float penalty,
                        Stream& stream) override;
  void sample(ConstMatrix logits, std::span<const double> uniforms, const SamplingRule& rule,
              std::span<std::int32_t> tokens, Stream& stream) override;
  bool all_finite(ConstMatrix x, Stream& stream) override;

 private:
  /// Threads, scratch memory and products for the operations of one kind of stream.
  struct Lane {
    ThreadPool pool;
    Gemm gemm;
    Context context;
    std::mutex mutex;
    Lane(int threads, std::byte* scratch, Gemm::Bf16Products bf16_products)
        : pool(threads), gemm(threads, bf16_products), context{pool, scratch} {}
  };

  /// Enqueues work(context, gemm).
  template <class Work>
  void enqueue(Stream& stream, Work work);

  const Stream& compute_stream_;
  Lane compute_, beside_;
};

}  // namespace cartan::device::cpu
