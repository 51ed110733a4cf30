#include "device/cuda/graph_ops.hpp"

#include <bit>
#include <tuple>
#include <type_traits>

#include "device/cuda/replay.hpp"

namespace cartan::device::cuda {
namespace {

using Word = Replay::Word;
using Key = Replay::Key;

// What an operation is given, as words.

template <class T>
requires std::is_integral_v<T> || std::is_enum_v<T>
void put(Key& key, T value) { key.push_back(static_cast<Word>(value)); }
void put(Key& key, float value) { put(key, std::bit_cast<std::uint32_t>(value)); }
template <class T>
void put(Key& key, T* data) {
  key.push_back(reinterpret_cast<Word>(data));
}
void put(Key& key, const ConstMatrix& m) {
  for (const Index value : {m.rows, m.cols, m.stride}) put(key, value);
  put(key, m.data);
  put(key, m.factor);
  put(key, m.dtype);
}
void put(Key& key, const ConstVector& v) {
  put(key, v.data);
  put(key, v.size);
  put(key, v.dtype);
}
void put(Key& key, std::span<const std::int32_t> in_device_memory) {
  put(key, in_device_memory.data());
  put(key, in_device_memory.size());
}
void put(Key& key, const SequenceShape& shape) {
  put(key, shape.sequences);
  put(key, shape.length);
}
void put(Key& key, const AttentionShape& s) {
  for (const Index value :
       {s.sequences, s.q_length, s.k_length, s.heads, s.kv_heads, s.head_dim, s.q_first, s.k_first})
    put(key, value);
  put(key, s.scale);
}
void put(Key& key, const DropoutRule& rule) {
  put(key, rule.factor);
  put(key, rule.threshold);
  put(key, rule.seed);
  put(key, rule.stream);
  put(key, rule.first_column);
}
void put(Key& key, const Fp8Scale& scale) {
  put(key, scale.scale);
  put(key, scale.inverse);
  put(key, scale.amax);
}
void put(Key& key, const GradientView& view) {
  put(key, view.offset);
  put(key, view.slots.size());
  for (float* const slot : view.slots) put(key, slot);
  put(key, view ? view.plan->merges.size() + 1 : 0);
  if (!view) return;
  for (const int value : {view.plan->depth_before, view.plan->depth_after, view.plan->max_depth})
    put(key, value);
  for (const int merges : view.plan->merges) put(key, merges);
}

// The same, owned: what a call that is made later needs.

template <class T>
class Held {
 public:
  explicit Held(const T& value) : value_(value) {}
  const T& get() const { return value_; }

 private:
  T value_;
};

template <>
class Held<GradientView> {
 public:
  explicit Held(const GradientView& view)
      : slots_(view.slots.begin(), view.slots.end()),
        offset_(view.offset),
        is_there_(view),
        plan_(view ? *view.plan : FoldPlan{}) {}
  GradientView get() const { return {slots_, offset_, is_there_ ? &plan_ : nullptr}; }

 private:
  std::vector<float*> slots_;
  Index offset_;
  bool is_there_;
  FoldPlan plan_;
};

class GraphOps : public Ops {
 public:
  GraphOps(Ops& ops, CudaStream& compute_stream)
      : ops_(ops), compute_stream_(compute_stream), replay_(compute_stream) {}

  void embedding_forward(std::span<const std::int32_t> ids, ConstMatrix table, Index first, Matrix out,
                         Stream& stream) override {
    run<&Ops::embedding_forward>(stream, ids, table, first, out);
  }
  void embedding_backward(std::span<const std::int32_t> ids, ConstMatrix dout, SequenceShape shape,
                          Index first, Index vocab, const GradientView& dtable, Stream& stream) override {
    run<&Ops::embedding_backward>(stream, ids, dout, shape, first, vocab, dtable);
  }
  void rmsnorm_forward(ConstMatrix x, ConstVector weight, float eps, Matrix y, Vector inv_rms,
                       Stream& stream) override {
    run<&Ops::rmsnorm_forward>(stream, x, weight, eps, y, inv_rms);
  }
  void rmsnorm_backward(ConstMatrix x, ConstVector weight, ConstVector inv_rms, ConstMatrix dy, Matrix dx,
                        bool accumulate, SequenceShape shape, const GradientView& dweight,
                        Stream& stream) override {
    run<&Ops::rmsnorm_backward>(stream, x, weight, inv_rms, dy, dx, accumulate, shape, dweight);
  }
  void to_fp8(ConstMatrix x, Matrix codes, bool transposed, const Fp8Scale& scale, Stream& stream) override {
    run<&Ops::to_fp8>(stream, x, codes, transposed, scale);
  }
  void linear_forward(ConstMatrix x, ConstMatrix w, ConstVector bias, Matrix y, bool accumulate,
                      SequenceShape shape, Stream& stream) override {
    run<&Ops::linear_forward>(stream, x, w, bias, y, accumulate, shape);
  }
  void linear_backward_input(ConstMatrix dy, ConstMatrix w, Matrix dx, bool accumulate, SequenceShape shape,
                             Stream& stream) override {
    run<&Ops::linear_backward_input>(stream, dy, w, dx, accumulate, shape);
  }
  void linear_backward_weight(ConstMatrix dy, ConstMatrix x, SequenceShape shape, const GradientView& dw,
                              const GradientView& dbias, Stream& stream) override {
    run<&Ops::linear_backward_weight>(stream, dy, x, shape, dw, dbias);
  }
  void column_sums(ConstMatrix dy, SequenceShape shape, const GradientView& dbias, Stream& stream) override {
    run<&Ops::column_sums>(stream, dy, shape, dbias);
  }
  void rope(Matrix x, Index head_dim, std::span<const std::int32_t> positions, ConstMatrix cosines,
            ConstMatrix sines, bool inverse, Stream& stream) override {
    run<&Ops::rope>(stream, x, head_dim, positions, cosines, sines, inverse);
  }
  void attention_forward(const AttentionShape& shape, ConstMatrix q, ConstMatrix k, ConstMatrix v,
                         std::span<const std::int32_t> document_start, Matrix out, Vector log_sum_exp,
                         Stream& stream) override {
    run<&Ops::attention_forward>(stream, shape, q, k, v, document_start, out, log_sum_exp);
  }
  void attention_merge(Matrix out_sum, Vector lse_sum, ConstMatrix out, ConstVector log_sum_exp,
                       Index head_dim, Stream& stream) override {
    run<&Ops::attention_merge>(stream, out_sum, lse_sum, out, log_sum_exp, head_dim);
  }
  void attention_backward(const AttentionShape& shape, ConstMatrix q, ConstMatrix k, ConstMatrix v,
                          ConstMatrix out, ConstVector log_sum_exp,
                          std::span<const std::int32_t> document_start, ConstMatrix dout, Matrix dq,
                          bool accumulate_dq, Matrix dk, Matrix dv, bool accumulate_dkv,
                          Stream& stream) override {
    run<&Ops::attention_backward>(stream, shape, q, k, v, out, log_sum_exp, document_start, dout, dq,
                                  accumulate_dq, dk, dv, accumulate_dkv);
  }
  void swiglu_forward(ConstMatrix gate_up, Matrix y, Stream& stream) override {
    run<&Ops::swiglu_forward>(stream, gate_up, y);
  }
  void swiglu_backward(ConstMatrix gate_up, ConstMatrix dy, Matrix dgate_up, Matrix y,
                       Stream& stream) override {
    run<&Ops::swiglu_backward>(stream, gate_up, dy, dgate_up, y);
  }
  void cross_entropy(ConstMatrix logits, std::span<const std::int32_t> targets, Vector row_loss,
                     Matrix dlogits, const float* scale, Stream& stream) override {
    run<&Ops::cross_entropy>(stream, logits, targets, row_loss, dlogits, scale);
  }
  void cross_entropy_stats(ConstMatrix logits, std::span<const std::int32_t> targets, Index first,
                           Vector row_max, Vector row_sum, Vector target_logit, Stream& stream) override {
    run<&Ops::cross_entropy_stats>(stream, logits, targets, first, row_max, row_sum, target_logit);
  }
  void cross_entropy_combine(ConstMatrix stacked, Index parts, Vector row_max, Vector row_sum,
                             Vector target_logit, Stream& stream) override {
    run<&Ops::cross_entropy_combine>(stream, stacked, parts, row_max, row_sum, target_logit);
  }
  void cross_entropy_finish(ConstMatrix logits, std::span<const std::int32_t> targets, Index first,
                            ConstVector row_max, ConstVector row_sum, ConstVector target_logit,
                            Vector row_loss, Matrix dlogits, const float* scale, Stream& stream) override {
    run<&Ops::cross_entropy_finish>(stream, logits, targets, first, row_max, row_sum, target_logit, row_loss,
                                    dlogits, scale);
  }
  void sum_parts(ConstMatrix stacked, Index parts, ConstMatrix residual, Matrix out,
                 Stream& stream) override {
    run<&Ops::sum_parts>(stream, stacked, parts, residual, out);
  }
  void dropout(ConstMatrix x, std::span<const std::int32_t> rows, const DropoutRule& rule, Matrix out,
               Stream& stream) override {
    run<&Ops::dropout>(stream, x, rows, rule, out);
  }
  void add(Vector y, ConstVector x, Stream& stream) override { run<&Ops::add>(stream, y, x); }
  void subtract(Vector y, ConstVector x, Stream& stream) override { run<&Ops::subtract>(stream, y, x); }
  void fill_zero(Vector y, Stream& stream) override { run<&Ops::fill_zero>(stream, y); }
  void copy(ConstMatrix x, Matrix y, Stream& stream) override { run<&Ops::copy>(stream, x, y); }

  // These come with other numbers in each step, or read lists of the host.

  void adamw(Vector master, ConstVector gradient, Vector exp_avg, Vector exp_avg_sq, Vector compute,
             const AdamWStep& step, const UpdateDecision* decision, Stream& stream) override {
    ops_.adamw(master, gradient, exp_avg, exp_avg_sq, compute, step, decision, stream);
  }
  void square_sums(ConstVector x, std::span<double> sums, Stream& stream) override {
    ops_.square_sums(x, sums, stream);
  }
  void exact_sum(std::span<const double> values, std::span<std::int64_t> words, Stream& stream) override {
    ops_.exact_sum(values, words, stream);
  }
  void decide_update(std::span<const std::int64_t> words, const UpdateRule& rule, const float* loss_scale,
                     UpdateDecision* decision, Stream& stream) override {
    ops_.decide_update(words, rule, loss_scale, decision, stream);
  }
  void update_loss_scale(const UpdateDecision* decision, const LossScaleRule& rule, LossScaleState* state,
                         float* of_loss, Stream& stream) override {
    ops_.update_loss_scale(decision, rule, state, of_loss, stream);
  }
  void tree_sum(std::span<const float* const> values, std::span<const int> merges, float* out, Index count,
                Stream& stream) override {
    ops_.tree_sum(values, merges, out, count, stream);
  }
  void orthonormalise_rows(Matrix x, Stream& stream) override { ops_.orthonormalise_rows(x, stream); }
  void take_largest(Vector x, Vector values, std::span<std::uint32_t> indices, Stream& stream) override {
    ops_.take_largest(x, values, indices, stream);
  }
  void scatter_add(Vector y, ConstVector values, std::span<const std::uint32_t> indices,
                   Stream& stream) override {
    ops_.scatter_add(y, values, indices, stream);
  }
  void penalise_repeats(Vector logits, std::span<const std::int32_t> ids, float penalty,
                        Stream& stream) override {
    ops_.penalise_repeats(logits, ids, penalty, stream);
  }
  void sample(ConstMatrix logits, std::span<const double> uniforms, const SamplingRule& rule,
              std::span<std::int32_t> tokens, Stream& stream) override {
    ops_.sample(logits, uniforms, rule, tokens, stream);
  }
  bool all_finite(ConstMatrix x, Stream& stream) override { return ops_.all_finite(x, stream); }

 private:
  template <auto kOperation, class... Arguments>
  void run(Stream& stream, const Arguments&... arguments) {
    if (&stream != &compute_stream_) return (ops_.*kOperation)(arguments..., stream);
    static char name;  // its address tells the operation
    key_.clear();
    put(key_, &name);
    (put(key_, arguments), ...);
    replay_.add(key_, [&] {
      return [this, held = std::tuple(Held<Arguments>(arguments)...)] {
        std::apply([&](const auto&... each) { (ops_.*kOperation)(each.get()..., compute_stream_); }, held);
      };
    });
  }

  Ops& ops_;
  CudaStream& compute_stream_;
  Replay replay_;
  Key key_;
};

}  // namespace

std::unique_ptr<Ops> make_graph_ops(Ops& ops, CudaStream& compute_stream) {
  return std::make_unique<GraphOps>(ops, compute_stream);
}

}  // namespace cartan::device::cuda
