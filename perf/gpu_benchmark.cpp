// The operations of the cuda device at the shapes of SmolLM2-135M and of a Llama with 1 billion parameters:
// bytes/s or FLOP/s, which share that is of what a plain copy or cuBLASLt's large product reaches in the same
// run (of_limit), and which share is expected (gpu_measure.cpp). Bytes are those that must move, operands are
// larger than the caches.
//
//   gpu_benchmark [--small] [--seconds N] [--benchmark_filter=... and what else Google Benchmark takes]
//
// --small: tiny operands, for a run of the code; --seconds: what has not begun by then is skipped.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cartan/core/clock.hpp"
#include "cartan/core/error.hpp"
#include "cartan/core/random.hpp"
#include "cartan/device/cuda_stream.hpp"
#include "gpu_measure.hpp"
#include "kernels/sums.hpp"

namespace cartan::perf {
namespace {

using device::AttentionShape;
using device::Ops;
using device::SequenceShape;
using device::Stream;

using Work = std::function<void(Ops&, Stream&)>;

double seconds_allowed = 1e9;
const auto program_start = Clock::now();

/// Sizes of a model and of a micro-batch of it.
struct Shape {
  std::string name;
  Index hidden, heads, kv_heads, head_dim, ffn, vocab;
  SequenceShape batch;  ///< for operations on rows: far more than the caches hold
  Index loss_rows;      ///< rows of logits
  Index tokens() const { return batch.tokens(); }
};

std::vector<Shape> shapes() {
  if (scale().small) return {{"small", 64, 2, 1, 64, 96, 300, {2, 33}, 5}};
  return {{"smollm2-135m", 576, 9, 3, 64, 1536, 49152, {32, 2048}, 8192},
          {"llama3.2-1b", 2048, 32, 8, 64, 8192, 128256, {16, 2048}, 8192}};
}

/// Measures `work`, which moves so many bytes or needs so many FLOPs.
void report(benchmark::State& state, const std::string& operation, double amount, const Work& work) {
  const Expectation expected = expectation(operation);
  const double seconds = seconds_of(work), rate = amount / seconds;
  for (auto _ : state) state.SetIterationTime(seconds);
  const bool moves = expected.bound == Bound::memory;
  state.counters[moves ? "GB/s" : "TFLOP/s"] = rate / (moves ? 1e9 : 1e12);
  state.counters["of_limit"] = rate / limit(expected.bound);
  if (expected.low > 0) {
    state.counters["expected_low"] = expected.low;
    state.counters["expected_high"] = expected.high;
  }
}

/// Registers "operation/variant"; `body` makes the operands and calls report().
void add(const std::string& operation, const std::string& variant,
         const std::function<void(benchmark::State&, const std::string&)>& body) {
  benchmark::RegisterBenchmark((operation + "/" + variant).c_str(),
                               [=](benchmark::State& state) {
                                 if (seconds_since(program_start) > seconds_allowed)
                                   return state.SkipWithError("no time was left");
                                 try {
                                   body(state, operation);
                                 } catch (const Error& error) {  // a GPU without memory for it, for example
                                   state.SkipWithError(error.what());
                                 }
                               })
      ->UseManualTime()
      ->Iterations(1)
      ->Unit(benchmark::kMicrosecond);
}

double count(Index a, Index b = 1, Index c = 1) {
  return static_cast<double>(a) * static_cast<double>(b) * static_cast<double>(c);
}

Array rows(const Shape& s, Index cols, DType dtype = DType::bf16) { return {dtype, s.tokens() * cols}; }

Numbers<std::int32_t> ids(Index size, Index bound) {
  const RandomStream random(1, "ids");
  std::vector<std::int32_t> host;
  for (Index i = 0; i < size; ++i)
    host.push_back(static_cast<std::int32_t>(random.bits(static_cast<std::uint64_t>(i)) %
                                             static_cast<std::uint64_t>(bound)));
  return Numbers<std::int32_t>(host);
}

// --- rows of activations in bf16 ---

/// Groups of `width` columns: the whole row, or a head.
void add_norms(const Shape& s) {
  const auto forward = [s](Index width) {
    return [s, width](benchmark::State& state, const std::string& operation) {
      const Array x = rows(s, s.hidden), y = rows(s, s.hidden), weight(DType::bf16, width);
      const Array inv_rms(DType::f32, s.tokens() * (s.hidden / width));
      report(state, operation, 4 * count(s.tokens(), s.hidden), [&](Ops& ops, Stream& stream) {
        ops.rmsnorm_forward(x.matrix(s.tokens(), s.hidden), weight.vector(), 1e-5f,
                            y.matrix(s.tokens(), s.hidden), inv_rms.vector(), stream);
      });
    };
  };
  add("rmsnorm_forward", s.name, forward(s.hidden));
  add("rmsnorm_heads", s.name, forward(s.head_dim));
  add("rmsnorm_backward", s.name, [s](benchmark::State& state, const std::string& operation) {
    const Array x = rows(s, s.hidden), dy = rows(s, s.hidden), dx = rows(s, s.hidden);
    const Array weight(DType::bf16, s.hidden), inv_rms(DType::f32, s.tokens());
    Gradient dweight(s.hidden, s.batch.sequences);
    report(state, operation, 10 * count(s.tokens(), s.hidden), [&](Ops& ops, Stream& stream) {
      ops.rmsnorm_backward(x.matrix(s.tokens(), s.hidden), weight.vector(), inv_rms.vector(),
                           dy.matrix(s.tokens(), s.hidden), dx.matrix(s.tokens(), s.hidden), false, s.batch,
                           dweight.view(), stream);
    });
  });
}

void add_rope(const Shape& s) {
  add("rope", s.name, [s](benchmark::State& state, const std::string& operation) {
    const Index cols = s.heads * s.head_dim, angles = s.head_dim / 2;
    const Array x = rows(s, cols);
    const Array cosines(DType::f32, s.batch.length * angles), sines(DType::f32, s.batch.length * angles);
    std::vector<std::int32_t> host;
    for (Index t = 0; t < s.tokens(); ++t) host.push_back(static_cast<std::int32_t>(t % s.batch.length));
    const Numbers<std::int32_t> positions(host);
    report(state, operation, 4 * count(s.tokens(), cols), [&](Ops& ops, Stream& stream) {
      ops.rope(x.matrix(s.tokens(), cols), s.head_dim, positions.span(),
               cosines.matrix(s.batch.length, angles), sines.matrix(s.batch.length, angles), false, stream);
    });
  });
}

void add_swiglu(const Shape& s) {
  add("swiglu_forward", s.name, [s](benchmark::State& state, const std::string& operation) {
    const Array gate_up = rows(s, 2 * s.ffn), y = rows(s, s.ffn);
    report(state, operation, 6 * count(s.tokens(), s.ffn), [&](Ops& ops, Stream& stream) {
      ops.swiglu_forward(gate_up.matrix(s.tokens(), 2 * s.ffn), y.matrix(s.tokens(), s.ffn), stream);
    });
  });
  add("swiglu_backward", s.name, [s](benchmark::State& state, const std::string& operation) {
    const Array gate_up = rows(s, 2 * s.ffn), dgate_up = rows(s, 2 * s.ffn);
    const Array y = rows(s, s.ffn), dy = rows(s, s.ffn);
    report(state, operation, 12 * count(s.tokens(), s.ffn), [&](Ops& ops, Stream& stream) {
      ops.swiglu_backward(gate_up.matrix(s.tokens(), 2 * s.ffn), dy.matrix(s.tokens(), s.ffn),
                          dgate_up.matrix(s.tokens(), 2 * s.ffn), y.matrix(s.tokens(), s.ffn), stream);
    });
  });
}

void add_embedding(const Shape& s) {
  add("embedding_forward", s.name, [s](benchmark::State& state, const std::string& operation) {
    const Array table(DType::bf16, s.vocab * s.hidden), out = rows(s, s.hidden);
    const auto tokens = ids(s.tokens(), s.vocab);
    report(state, operation, 4 * count(s.tokens(), s.hidden), [&](Ops& ops, Stream& stream) {
      ops.embedding_forward(tokens.span(), table.matrix(s.vocab, s.hidden), 0,
                            out.matrix(s.tokens(), s.hidden), stream);
    });
  });
  add("embedding_backward", s.name, [s](benchmark::State& state, const std::string& operation) {
    const Array dout = rows(s, s.hidden);
    const auto tokens = ids(s.tokens(), s.vocab);
    Gradient dtable(s.vocab * s.hidden, s.batch.sequences);
    const double bytes = 2 * count(s.tokens(), s.hidden) + 4 * count(s.vocab, s.hidden);
    report(state, operation, bytes, [&](Ops& ops, Stream& stream) {
      ops.embedding_backward(tokens.span(), dout.matrix(s.tokens(), s.hidden), s.batch, 0, s.vocab,
                             dtable.view(), stream);
    });
  });
}

// --- the loss: logits in fp32, their gradient in bf16 ---

void add_loss(const Shape& s) {
  const auto targets = [s] { return ids(s.loss_rows, s.vocab); };
  add("cross_entropy", s.name, [s, targets](benchmark::State& state, const std::string& operation) {
    const Index n = s.loss_rows;
    const Array logits(DType::f32, n * s.vocab), dlogits(DType::bf16, n * s.vocab), loss(DType::f32, n);
    const auto wanted = targets();
    report(state, operation, 10 * count(n, s.vocab), [&](Ops& ops, Stream& stream) {
      ops.cross_entropy(logits.matrix(n, s.vocab), wanted.span(), loss.vector(), dlogits.matrix(n, s.vocab),
                        nullptr, stream);
    });
  });
  add("cross_entropy_stats", s.name, [s, targets](benchmark::State& state, const std::string& operation) {
    const Index n = s.loss_rows;
    const Array logits(DType::f32, n * s.vocab);
    const Array row_max(DType::f32, n), row_sum(DType::f32, n), target(DType::f32, n);
    const auto wanted = targets();
    report(state, operation, 4 * count(n, s.vocab), [&](Ops& ops, Stream& stream) {
      ops.cross_entropy_stats(logits.matrix(n, s.vocab), wanted.span(), 0, row_max.vector(), row_sum.vector(),
                              target.vector(), stream);
    });
  });
  add("cross_entropy_finish", s.name, [s, targets](benchmark::State& state, const std::string& operation) {
    const Index n = s.loss_rows;
    const Array logits(DType::f32, n * s.vocab), dlogits(DType::bf16, n * s.vocab), loss(DType::f32, n);
    const Array row_max(DType::f32, n), row_sum(DType::f32, n), target(DType::f32, n);
    const auto wanted = targets();
    report(state, operation, 6 * count(n, s.vocab), [&](Ops& ops, Stream& stream) {
      ops.cross_entropy_finish(logits.matrix(n, s.vocab), wanted.span(), 0, row_max.vector(),
                               row_sum.vector(), target.vector(), loss.vector(), dlogits.matrix(n, s.vocab),
                               nullptr, stream);
    });
  });
  // What the next token of one text waits for: one multiprocessor reads the row nine times.
  add("sample", s.name, [s](benchmark::State& state, const std::string& operation) {
    const Array logits(DType::f32, s.vocab);
    const Numbers<double> uniforms(std::vector<double>{0.5});
    const Numbers<std::int32_t> token(std::vector<std::int32_t>{0});
    report(state, operation, 36 * count(s.vocab), [&](Ops& ops, Stream& stream) {
      ops.sample(logits.matrix(1, s.vocab), uniforms.span(), {1, 50, 0.9}, token.span(), stream);
    });
  });
}

// --- products ---

void add_products(const Shape& s) {
  const Index q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  struct Weight {
    const char* name;
    Index tokens, out, in;
    DType result;
  };
  const Index body = s.tokens() / (scale().small ? 1 : 2);
  for (const Weight w :
       {Weight{"qkv", body, q + 2 * kv, s.hidden, DType::bf16}, Weight{"out", body, s.hidden, q, DType::bf16},
        Weight{"gate_up", body, 2 * s.ffn, s.hidden, DType::bf16},
        Weight{"down", body, s.hidden, s.ffn, DType::bf16},
        Weight{"head", s.loss_rows, s.vocab, s.hidden, DType::f32}}) {
    // As the model has them: whole sequences; the head sees as many of them as its rows allow.
    const Index length = w.tokens % s.batch.length == 0 ? s.batch.length : w.tokens;
    const SequenceShape shape{w.tokens / length, length};
    const double flops = 2 * count(w.tokens, w.out, w.in);
    const std::string variant = s.name + "/" + w.name;
    add("linear_forward", variant, [=](benchmark::State& state, const std::string& operation) {
      const Array x(DType::bf16, w.tokens * w.in), weight(DType::bf16, w.out * w.in);
      const Array y(w.result, w.tokens * w.out);
      report(state, operation, flops, [&](Ops& ops, Stream& stream) {
        ops.linear_forward(x.matrix(w.tokens, w.in), weight.matrix(w.out, w.in), {},
                           y.matrix(w.tokens, w.out), false, shape, stream);
      });
    });
    add("linear_backward_input", variant, [=](benchmark::State& state, const std::string& operation) {
      const Array dy(DType::bf16, w.tokens * w.out), weight(DType::bf16, w.out * w.in);
      const Array dx(DType::bf16, w.tokens * w.in);
      report(state, operation, flops, [&](Ops& ops, Stream& stream) {
        ops.linear_backward_input(dy.matrix(w.tokens, w.out), weight.matrix(w.out, w.in),
                                  dx.matrix(w.tokens, w.in), false, shape, stream);
      });
    });
    add("linear_backward_weight", variant, [=](benchmark::State& state, const std::string& operation) {
      const Array dy(DType::bf16, w.tokens * w.out), x(DType::bf16, w.tokens * w.in);
      Gradient dw(w.out * w.in, shape.sequences);
      report(state, operation, flops, [&](Ops& ops, Stream& stream) {
        ops.linear_backward_weight(dy.matrix(w.tokens, w.out), x.matrix(w.tokens, w.in), shape, dw.view(), {},
                                   stream);
      });
    });
  }
}

// --- attention: FLOPs that the kernels execute for the visible pairs of query and key ---

struct Attention {
  AttentionShape shape;
  DType dtype;
  Index rows() const { return shape.sequences * shape.q_length; }
  Index q_cols() const { return shape.heads * shape.head_dim; }
  Index kv_cols() const { return shape.kv_heads * shape.head_dim; }
  double pairs() const {
    return count(shape.sequences * shape.heads, shape.q_length, shape.q_length + 1) / 2;
  }
};

void add_attention(const std::string& forward, const std::string& backward, const std::string& variant,
                   const Attention& a) {
  struct Operands {
    explicit Operands(const Attention& a)
        : q(a.dtype, a.rows() * a.q_cols()),
          k(a.dtype, a.rows() * a.kv_cols()),
          v(a.dtype, a.rows() * a.kv_cols()),
          out(a.dtype, a.rows() * a.q_cols()),
          log_sum_exp(DType::f32, a.rows() * a.shape.heads),
          starts(std::vector<std::int32_t>(static_cast<std::size_t>(a.rows()), 0)) {}
    void run(const Attention& a, Ops& ops, Stream& stream) const {
      ops.attention_forward(a.shape, q.matrix(a.rows(), a.q_cols()), k.matrix(a.rows(), a.kv_cols()),
                            v.matrix(a.rows(), a.kv_cols()), starts.span(), out.matrix(a.rows(), a.q_cols()),
                            log_sum_exp.vector(), stream);
    }
    Array q, k, v, out, log_sum_exp;
    Numbers<std::int32_t> starts;
  };
  add(forward, variant, [a](benchmark::State& state, const std::string& operation) {
    const Operands o(a);
    report(state, operation, 4 * a.pairs() * count(a.shape.head_dim),
           [&](Ops& ops, Stream& stream) { o.run(a, ops, stream); });
  });
  add(backward, variant, [a](benchmark::State& state, const std::string& operation) {
    const Operands o(a);
    o.run(a, gpu().ops(), gpu().compute_stream());
    const Array dout(a.dtype, a.rows() * a.q_cols()), dq(a.dtype, a.rows() * a.q_cols());
    const Array dk(a.dtype, a.rows() * a.kv_cols()), dv(a.dtype, a.rows() * a.kv_cols());
    report(state, operation, 14 * a.pairs() * count(a.shape.head_dim), [&](Ops& ops, Stream& stream) {
      ops.attention_backward(a.shape, o.q.matrix(a.rows(), a.q_cols()), o.k.matrix(a.rows(), a.kv_cols()),
                             o.v.matrix(a.rows(), a.kv_cols()), o.out.matrix(a.rows(), a.q_cols()),
                             o.log_sum_exp.vector(), o.starts.span(), dout.matrix(a.rows(), a.q_cols()),
                             dq.matrix(a.rows(), a.q_cols()), false, dk.matrix(a.rows(), a.kv_cols()),
                             dv.matrix(a.rows(), a.kv_cols()), false, stream);
    });
  });
}

void add_attentions(const Shape& s) {
  const auto shape = [](Index sequences, Index length, Index heads, Index kv_heads, Index dim) {
    return AttentionShape{
        sequences, length, length, heads, kv_heads, dim, 1.0f / std::sqrt(static_cast<float>(dim))};
  };
  const bool small = scale().small;
  const Index sequences = small ? 1 : 4;
  for (const Index length : small ? std::vector<Index>{33} : std::vector<Index>{2048, 8192})
    add_attention("attention_forward_64", "attention_backward_64", s.name + "/" + std::to_string(length),
                  {shape(sequences, length, s.heads, s.kv_heads, 64), DType::bf16});
  const Index length = small ? 33 : 4096;
  add_attention("attention_forward_128", "attention_backward_128", s.name + "/wide",
                {shape(sequences, length, s.heads, s.kv_heads, 128), DType::bf16});
  add_attention("attention_fp32_forward", "attention_fp32_backward", s.name,
                {shape(1, small ? 33 : 2048, s.heads, s.kv_heads, 64), DType::f32});
  add("attention_merge", s.name, [s](benchmark::State& state, const std::string& operation) {
    const Index cols = s.heads * s.head_dim;
    const Array sum = rows(s, cols, DType::f32), part = rows(s, cols);
    const Array lse_sum(DType::f32, s.tokens() * s.heads), lse(DType::f32, s.tokens() * s.heads);
    report(state, operation, 10 * count(s.tokens(), cols), [&](Ops& ops, Stream& stream) {
      ops.attention_merge(sum.matrix(s.tokens(), cols), lse_sum.vector(), part.matrix(s.tokens(), cols),
                          lse.vector(), s.head_dim, stream);
    });
  });
}

// --- long vectors: parameters, their gradients and states ---

void add_vectors() {
  const Index n = scale().small ? 3 * 1024 : Index{1} << 26;
  const std::string variant = std::to_string(n);
  add("adamw", variant, [n](benchmark::State& state, const std::string& operation) {
    const Array master(DType::f32, n), gradient(DType::f32, n), m(DType::f32, n), v(DType::f32, n);
    const Array compute(DType::bf16, n);
    gpu().ops().fill_zero(v.vector(), gpu().compute_stream());
    const device::AdamWStep step{1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.5f, 0.5f, 1.0f};
    report(state, operation, 30 * count(n), [&](Ops& ops, Stream& stream) {
      ops.adamw(master.vector(), gradient.vector(), m.vector(), v.vector(), compute.vector(), step, nullptr,
                stream);
    });
  });
  add("square_sums", variant, [n](benchmark::State& state, const std::string& operation) {
    const Array x(DType::f32, n);
    const Numbers<double> sums(static_cast<std::size_t>(n / device::kSumBlock));
    report(state, operation, 4 * count(n),
           [&](Ops& ops, Stream& stream) { ops.square_sums(x.vector(), sums.span(), stream); });
  });
  add("tree_sum", variant + "x4", [n](benchmark::State& state, const std::string& operation) {
    const Array a(DType::f32, n), b(DType::f32, n), c(DType::f32, n), d(DType::f32, n);
    const std::vector<const float*> values{a.floats(), b.floats(), c.floats(), d.floats()};
    const std::vector<int> merges{0, 1, 0, 2};
    const Array out(DType::f32, n);
    report(state, operation, 20 * count(n),
           [&](Ops& ops, Stream& stream) { ops.tree_sum(values, merges, out.floats(), n, stream); });
  });
  add("sum_parts", variant + "x4", [n](benchmark::State& state, const std::string& operation) {
    const Index cols = 1024, tokens = n / cols;
    const Array stacked(DType::bf16, 4 * n), residual(DType::bf16, n), out(DType::bf16, n);
    report(state, operation, 12 * count(n), [&](Ops& ops, Stream& stream) {
      ops.sum_parts(stacked.matrix(4 * tokens, cols), 4, residual.matrix(tokens, cols),
                    out.matrix(tokens, cols), stream);
    });
  });
  add("fold_columns", variant, [n](benchmark::State& state, const std::string& operation) {
    const Index cols = 1024, tokens = n / cols;
    const Array x(DType::bf16, n), scratch(DType::f32, static_cast<Index>(kernels::kScratchBytes / 4));
    Gradient sums(cols, 1);
    report(state, operation, 2 * count(n), [&](Ops&, Stream& stream) {
      kernels::fold_columns(x.matrix(tokens, cols), {1, tokens}, sums.view(),
                            {scratch.floats(), kernels::kScratchBytes}, device::native_stream(stream));
    });
  });
  add("find_nonfinite", variant, [n](benchmark::State& state, const std::string& operation) {
    const Array x(DType::bf16, n);
    const Numbers<std::int32_t> flag(std::vector<std::int32_t>{0});
    report(state, operation, 2 * count(n), [&](Ops&, Stream& stream) {
      kernels::find_nonfinite(x.matrix(1, n), flag.span().data(), device::native_stream(stream));
    });
  });
  add("add", variant, [n](benchmark::State& state, const std::string& operation) {
    const Array x(DType::f32, n), y(DType::f32, n);
    report(state, operation, 12 * count(n),
           [&](Ops& ops, Stream& stream) { ops.add(y.vector(), x.vector(), stream); });
  });
  add("fill_zero", variant, [n](benchmark::State& state, const std::string& operation) {
    const Array y(DType::f32, n);
    report(state, operation, 4 * count(n),
           [&](Ops& ops, Stream& stream) { ops.fill_zero(y.vector(), stream); });
  });
  add("cast", variant, [n](benchmark::State& state, const std::string& operation) {
    const Array x(DType::f32, n), y(DType::bf16, n);
    report(state, operation, 6 * count(n),
           [&](Ops& ops, Stream& stream) { ops.copy(x.matrix(1, n), y.matrix(1, n), stream); });
  });
  add("copy_of_odd_rows", variant, [n](benchmark::State& state, const std::string& operation) {
    const Index cols = 1023, stride = 1024, tokens = n / stride;
    const Array x(DType::bf16, n + 1), y(DType::bf16, n + 1);
    const auto odd = [&](const Array& a) {
      return device::Matrix{device::advance(a.vector().data, DType::bf16, 1), DType::bf16, tokens, cols,
                            stride};
    };
    report(state, operation, 4 * count(tokens, cols),
           [&](Ops& ops, Stream& stream) { ops.copy(odd(x), odd(y), stream); });
  });
}

/// Gradients that are compressed.
void add_compression() {
  const Index n = scale().small ? 4000 : Index{1} << 25, added = n / 100;
  // What is taken is zero afterwards: so few that all calls together leave most of it.
  const Index taken = scale().small ? 40 : n / 10000;
  const std::string variant = std::to_string(n);
  add("take_largest", variant, [=](benchmark::State& state, const std::string& operation) {
    const Array x(DType::f32, n), values(DType::f32, taken);
    const Numbers<std::uint32_t> indices(static_cast<std::size_t>(taken));
    report(state, operation, 20 * count(n), [&](Ops& ops, Stream& stream) {
      ops.take_largest(x.vector(), values.vector(), indices.span(), stream);
    });
  });
  add("scatter_add", variant, [=](benchmark::State& state, const std::string& operation) {
    const Array y(DType::f32, n), values(DType::f32, added);
    std::vector<std::uint32_t> host;
    for (Index i = 0; i < added; ++i) host.push_back(static_cast<std::uint32_t>(100 * i));
    const Numbers<std::uint32_t> indices(host);
    report(state, operation, 16 * count(added), [&](Ops& ops, Stream& stream) {
      ops.scatter_add(y.vector(), values.vector(), indices.span(), stream);
    });
  });
  for (const Index cols : scale().small ? std::vector<Index>{200} : std::vector<Index>{16384, Index{1} << 22})
    add("orthonormalise_rows", "4x" + std::to_string(cols),
        [cols](benchmark::State& state, const std::string& operation) {
          const Array x(DType::f32, 4 * cols);
          report(state, operation, 12 * 16 * count(cols),
                 [&](Ops& ops, Stream& stream) { ops.orthonormalise_rows(x.matrix(4, cols), stream); });
        });
}

void add_limits() {
  for (const auto& [name, bound] : {std::pair{"memory", Bound::memory},
                                    {"bf16_product", Bound::bf16_product},
                                    {"fp32_product", Bound::fp32_product}})
    benchmark::RegisterBenchmark((std::string("limit/") + name).c_str(),
                                 [bound = bound](benchmark::State& state) {
                                   for (auto _ : state) state.SetIterationTime(0);
                                   const bool moves = bound == Bound::memory;
                                   state.counters[moves ? "GB/s" : "TFLOP/s"] =
                                       limit(bound) / (moves ? 1e9 : 1e12);
                                 })
        ->UseManualTime()
        ->Iterations(1);
}

}  // namespace
}  // namespace cartan::perf

int main(int argc, char** argv) {
  using namespace cartan::perf;  // NOLINT(google-build-using-namespace)
  try {
    benchmark::Initialize(&argc, argv);
    int left = 1;
    for (int i = 1; i < argc; ++i) {
      if (std::strcmp(argv[i], "--small") == 0)
        scale().small = true;
      else if (std::strcmp(argv[i], "--seconds") == 0 && i + 1 < argc)
        seconds_allowed = std::atof(argv[++i]);
      else
        argv[left++] = argv[i];
    }
    if (benchmark::ReportUnrecognizedArguments(left, argv)) return 64;
    benchmark::AddCustomContext("device", gpu().description());
    add_limits();
    for (const Shape& shape : shapes()) {
      add_norms(shape);
      add_rope(shape);
      add_swiglu(shape);
      add_embedding(shape);
      add_attentions(shape);
      add_products(shape);
      add_loss(shape);
    }
    add_vectors();
    add_compression();
    benchmark::RunSpecifiedBenchmarks();
    return 0;
  } catch (const cartan::Error& error) {
    std::fprintf(stderr, "gpu_benchmark: %s\n", error.what());
    return static_cast<int>(error.code());
  }
}
