// Micro-benchmarks of the operations of the cpu device on shapes of a training step: products and attention
// in GFLOP/s, everything else in GB/s of the bytes that must move. Threads: CARTAN_BENCH_THREADS, or all.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "cartan/core/canonical_tree.hpp"
#include "cartan/core/random.hpp"
#include "cartan/device/device.hpp"

namespace {

using namespace cartan;          // NOLINT(google-build-using-namespace): one file, no header
using namespace cartan::device;  // NOLINT(google-build-using-namespace)

Device& the_device() {
  static const auto device = [] {
    const char* threads = std::getenv("CARTAN_BENCH_THREADS");
    return make_device(DeviceKind::cpu, {.threads = threads == nullptr ? 0 : std::atoi(threads)});
  }();
  return *device;
}

/// The benchmarks' argument "type": 0 fp32, 1 bf16, 2 fp16.
constexpr std::int64_t kTypes[] = {0, 1, 2};
DType type_of(std::int64_t argument) {
  return argument == 0 ? DType::f32 : argument == 1 ? DType::bf16 : DType::f16;
}

/// An array of small normal numbers on the device.
struct Array {
  Buffer buffer;
  DType dtype;
  Array(DType dtype_, Index size)
      : buffer(the_device().allocate(static_cast<std::size_t>(size) * size_of(dtype_),
                                     MemoryKind::activations, "benchmark")),
        dtype(dtype_) {
    std::vector<float> floats(static_cast<std::size_t>(size));
    RandomStream(1, static_cast<std::uint64_t>(size)).fill_normal(0, 0.0, 0.5, floats);
    Stream& stream = the_device().compute_stream();
    the_device().ops().copy({floats.data(), DType::f32, 1, size, size},
                            as_matrix(buffer.data(), dtype, 1, size), stream);
    stream.synchronize();
  }
  Matrix matrix(Index rows, Index cols) const { return as_matrix(buffer.data(), dtype, rows, cols); }
  Vector vector(Index size) const { return {buffer.data(), dtype, size}; }
};

/// One slot that every micro-batch of so many sequences is added to.
struct Gradient {
  Array slot;
  float* pointer;
  FoldPlan plan;
  Gradient(Index size, Index sequences) : slot(DType::f32, size), pointer(slot.buffer.as<float>()) {
    plan = plan_folds(CanonicalTree(2 * sequences), 0, 2 * sequences, sequences).back();
  }
  GradientView view() { return {{&pointer, 1}, 0, &plan}; }
};

constexpr double kGiga = 1e9;

template <class Work>
void measure(benchmark::State& state, const char* unit, double amount, const Work& work) {
  Stream& stream = the_device().compute_stream();
  work(the_device().ops(), stream);  // warm-up: pages, primitives
  for (auto _ : state) {
    work(the_device().ops(), stream);
    stream.synchronize();
  }
  state.counters[unit] = benchmark::Counter(amount / kGiga * static_cast<double>(state.iterations()),
                                            benchmark::Counter::kIsRate);
}

// --- products: dtype, sequences, length, N, K ---

void product_shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"type", "seqs", "len", "n", "k"});
  for (const std::int64_t type : kTypes) {
    b->Args({type, 8, 256, 256, 256})->Args({type, 8, 256, 1408, 256})->Args({type, 8, 256, 256, 704});
    b->Args({type, 1, 2048, 960, 576})->Args({type, 1, 2048, 3072, 576})->Args({type, 1, 2048, 576, 1536});
    b->Args({type, 1, 2048, 49152, 576});
  }
  b->UseRealTime()->Unit(benchmark::kMillisecond);
}

struct Product {
  explicit Product(const benchmark::State& state)
      : dtype(type_of(state.range(0))),
        shape{state.range(1), state.range(2)},
        n(state.range(3)),
        k(state.range(4)),
        x(dtype, shape.tokens() * k),
        w(dtype, n * k),
        y(dtype, shape.tokens() * n) {}
  double flops() const { return 2.0 * static_cast<double>(shape.tokens()) * static_cast<double>(n * k); }
  DType dtype;
  SequenceShape shape;
  Index n, k;
  Array x, w, y;
};

void linear_forward(benchmark::State& state) {
  const Product p(state);
  measure(state, "GFLOP/s", p.flops(), [&](Ops& ops, Stream& stream) {
    ops.linear_forward(p.x.matrix(p.shape.tokens(), p.k), p.w.matrix(p.n, p.k), {},
                       p.y.matrix(p.shape.tokens(), p.n), false, p.shape, stream);
  });
}
BENCHMARK(linear_forward)->Apply(product_shapes);

void linear_backward_input(benchmark::State& state) {
  const Product p(state);
  measure(state, "GFLOP/s", p.flops(), [&](Ops& ops, Stream& stream) {
    ops.linear_backward_input(p.y.matrix(p.shape.tokens(), p.n), p.w.matrix(p.n, p.k),
                              p.x.matrix(p.shape.tokens(), p.k), false, p.shape, stream);
  });
}
BENCHMARK(linear_backward_input)->Apply(product_shapes);

void linear_backward_weight(benchmark::State& state) {
  const Product p(state);
  Gradient dw(p.n * p.k, p.shape.sequences);
  measure(state, "GFLOP/s", p.flops(), [&](Ops& ops, Stream& stream) {
    ops.linear_backward_weight(p.y.matrix(p.shape.tokens(), p.n), p.x.matrix(p.shape.tokens(), p.k), p.shape,
                               dw.view(), {}, stream);
  });
}
BENCHMARK(linear_backward_weight)->Apply(product_shapes);

void linear_decode(benchmark::State& state) {
  const Index n = 1536, k = 576;
  const DType dtype = type_of(state.range(0));
  const Array x(dtype, k), w(dtype, n * k), y(dtype, n);
  measure(state, "GB/s", static_cast<double>(n * k) * static_cast<double>(size_of(dtype)),
          [&](Ops& ops, Stream& stream) {
            ops.linear_forward(x.matrix(1, k), w.matrix(n, k), {}, y.matrix(1, n), false, {1, 1}, stream);
          });
}
BENCHMARK(linear_decode)->ArgName("type")->DenseRange(0, 2)->UseRealTime();

// --- attention: dtype, sequences, length, heads, kv_heads, head_dim ---

void attention_shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"type", "seqs", "len", "heads", "kv", "dim"});
  for (const std::int64_t type : kTypes) {
    b->Args({type, 8, 256, 8, 8, 32})->Args({type, 1, 2048, 9, 3, 64})->Args({type, 1, 8192, 8, 8, 32});
  }
  b->UseRealTime()->Unit(benchmark::kMillisecond);
}

struct AttentionProblem {
  explicit AttentionProblem(const benchmark::State& state)
      : dtype(type_of(state.range(0))),
        shape{state.range(1),
              state.range(2),
              state.range(2),
              state.range(3),
              state.range(4),
              state.range(5),
              1.0f / std::sqrt(static_cast<float>(state.range(5)))},
        rows(shape.sequences * shape.q_length),
        q_cols(shape.heads * shape.head_dim),
        kv_cols(shape.kv_heads * shape.head_dim),
        q(dtype, rows * q_cols),
        k(dtype, rows * kv_cols),
        v(dtype, rows * kv_cols),
        out(dtype, rows * q_cols),
        dout(dtype, rows * q_cols),
        dq(dtype, rows * q_cols),
        dk(dtype, rows * kv_cols),
        dv(dtype, rows * kv_cols),
        log_sum_exp(DType::f32, rows * shape.heads),
        starts(static_cast<std::size_t>(rows), 0) {}
  /// Of the causal half.
  double pairs() const {
    const auto length = static_cast<double>(shape.q_length);
    return static_cast<double>(shape.sequences * shape.heads) * length * (length + 1) / 2;
  }
  void forward(Ops& ops, Stream& stream) const {
    ops.attention_forward(shape, q.matrix(rows, q_cols), k.matrix(rows, kv_cols), v.matrix(rows, kv_cols),
                          starts, out.matrix(rows, q_cols), log_sum_exp.vector(rows * shape.heads), stream);
  }
  DType dtype;
  AttentionShape shape;
  Index rows, q_cols, kv_cols;
  Array q, k, v, out, dout, dq, dk, dv, log_sum_exp;
  std::vector<std::int32_t> starts;
};

void attention_forward(benchmark::State& state) {
  const AttentionProblem p(state);
  measure(state, "GFLOP/s", 4 * p.pairs() * static_cast<double>(p.shape.head_dim),
          [&](Ops& ops, Stream& stream) { p.forward(ops, stream); });
}
BENCHMARK(attention_forward)->Apply(attention_shapes);

void attention_backward(benchmark::State& state) {
  const AttentionProblem p(state);
  p.forward(the_device().ops(), the_device().compute_stream());
  measure(state, "GFLOP/s", 10 * p.pairs() * static_cast<double>(p.shape.head_dim),
          [&](Ops& ops, Stream& stream) {
            ops.attention_backward(p.shape, p.q.matrix(p.rows, p.q_cols), p.k.matrix(p.rows, p.kv_cols),
                                   p.v.matrix(p.rows, p.kv_cols), p.out.matrix(p.rows, p.q_cols),
                                   p.log_sum_exp.vector(p.rows * p.shape.heads), p.starts,
                                   p.dout.matrix(p.rows, p.q_cols), p.dq.matrix(p.rows, p.q_cols), false,
                                   p.dk.matrix(p.rows, p.kv_cols), p.dv.matrix(p.rows, p.kv_cols), false,
                                   stream);
          });
}
BENCHMARK(attention_backward)->Apply(attention_shapes);

// --- rows: dtype, tokens, columns ---

void row_shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"type", "tokens", "cols"});
  for (const std::int64_t type : kTypes)
    b->Args({type, 2048, 256})->Args({type, 2048, 576})->Args({type, 2048, 1536});
  b->UseRealTime()->Unit(benchmark::kMicrosecond);
}

struct Rows {
  explicit Rows(const benchmark::State& state)
      : dtype(type_of(state.range(0))), tokens(state.range(1)), cols(state.range(2)) {}
  Array make(Index factor = 1) const { return {dtype, factor * tokens * cols}; }
  double bytes(double arrays) const {
    return arrays * static_cast<double>(tokens * cols) * static_cast<double>(size_of(dtype));
  }
  DType dtype;
  Index tokens, cols;
};

void rmsnorm_forward(benchmark::State& state) {
  const Rows r(state);
  const Array x = r.make(), y = r.make(), weight(r.dtype, r.cols), inv(DType::f32, r.tokens);
  measure(state, "GB/s", r.bytes(2), [&](Ops& ops, Stream& stream) {
    ops.rmsnorm_forward(x.matrix(r.tokens, r.cols), weight.vector(r.cols), 1e-5f, y.matrix(r.tokens, r.cols),
                        inv.vector(r.tokens), stream);
  });
}
BENCHMARK(rmsnorm_forward)->Apply(row_shapes);

void rmsnorm_backward(benchmark::State& state) {
  const Rows r(state);
  const Array x = r.make(), dy = r.make(), dx = r.make(), weight(r.dtype, r.cols), inv(DType::f32, r.tokens);
  Gradient dweight(r.cols, 1);
  measure(state, "GB/s", r.bytes(4), [&](Ops& ops, Stream& stream) {
    ops.rmsnorm_backward(x.matrix(r.tokens, r.cols), weight.vector(r.cols), inv.vector(r.tokens),
                         dy.matrix(r.tokens, r.cols), dx.matrix(r.tokens, r.cols), true, {1, r.tokens},
                         dweight.view(), stream);
  });
}
BENCHMARK(rmsnorm_backward)->Apply(row_shapes);

void rope(benchmark::State& state) {
  const Rows r(state);
  constexpr Index kAngles = 16;
  const Array x = r.make();
  std::vector<float> cosines, sines;
  std::vector<std::int32_t> positions;
  for (Index t = 0; t < r.tokens; ++t) {
    positions.push_back(static_cast<std::int32_t>(t));
    for (Index i = 0; i < kAngles; ++i) {
      cosines.push_back(std::cos(static_cast<float>(t * (i + 1))));
      sines.push_back(std::sin(static_cast<float>(t * (i + 1))));
    }
  }
  const ConstMatrix c(cosines.data(), DType::f32, r.tokens, kAngles, kAngles);
  const ConstMatrix s(sines.data(), DType::f32, r.tokens, kAngles, kAngles);
  measure(state, "GB/s", r.bytes(2), [&](Ops& ops, Stream& stream) {
    ops.rope(x.matrix(r.tokens, r.cols), 2 * kAngles, positions, c, s, false, stream);
  });
}
BENCHMARK(rope)->Apply(row_shapes);

void swiglu_forward(benchmark::State& state) {
  const Rows r(state);
  const Array gate_up = r.make(2), y = r.make();
  measure(state, "GB/s", r.bytes(3), [&](Ops& ops, Stream& stream) {
    ops.swiglu_forward(gate_up.matrix(r.tokens, 2 * r.cols), y.matrix(r.tokens, r.cols), stream);
  });
}
BENCHMARK(swiglu_forward)->Apply(row_shapes);

void swiglu_backward(benchmark::State& state) {
  const Rows r(state);
  const Array gate_up = r.make(2), dy = r.make(), dgate_up = r.make(2), y = r.make();
  measure(state, "GB/s", r.bytes(6), [&](Ops& ops, Stream& stream) {
    ops.swiglu_backward(gate_up.matrix(r.tokens, 2 * r.cols), dy.matrix(r.tokens, r.cols),
                        dgate_up.matrix(r.tokens, 2 * r.cols), y.matrix(r.tokens, r.cols), stream);
  });
}
BENCHMARK(swiglu_backward)->Apply(row_shapes);

void cross_entropy(benchmark::State& state) {
  const Index tokens = 512, vocab = state.range(1);
  const DType dtype = type_of(state.range(0));
  const Array logits(DType::f32, tokens * vocab), losses(DType::f32, tokens), dlogits(dtype, tokens * vocab);
  const std::vector<std::int32_t> targets(static_cast<std::size_t>(tokens), 1);
  measure(state, "GB/s", static_cast<double>(tokens * vocab) * static_cast<double>(4 + size_of(dtype)),
          [&](Ops& ops, Stream& stream) {
            ops.cross_entropy(logits.matrix(tokens, vocab), targets, losses.vector(tokens),
                              dlogits.matrix(tokens, vocab), nullptr, stream);
          });
}
BENCHMARK(cross_entropy)
    ->ArgNames({"type", "vocab"})
    ->Args({0, 512})
    ->Args({0, 49152})
    ->Args({1, 49152})
    ->Args({2, 49152})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

void embedding_backward(benchmark::State& state) {
  const Index tokens = 2048, vocab = state.range(0), hidden = 576;
  const Array dout(DType::f32, tokens * hidden);
  std::vector<std::int32_t> ids;
  const RandomStream random(1, "ids");
  for (Index t = 0; t < tokens; ++t) {
    ids.push_back(static_cast<std::int32_t>(random.bits(static_cast<std::uint64_t>(t)) %
                                            static_cast<std::uint64_t>(vocab)));
  }
  Gradient dtable(vocab * hidden, 8);
  measure(state, "GB/s", static_cast<double>(2 * tokens * hidden) * 4, [&](Ops& ops, Stream& stream) {
    ops.embedding_backward(ids, dout.matrix(tokens, hidden), {8, 256}, 0, vocab, dtable.view(), stream);
  });
}
BENCHMARK(embedding_backward)
    ->ArgName("vocab")
    ->Arg(512)
    ->Arg(49152)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

// --- long vectors ---

constexpr Index kLong = Index{1} << 24;

void adamw(benchmark::State& state) {
  const DType dtype = type_of(state.range(0));
  const Array master(DType::f32, kLong), gradient(DType::f32, kLong), m(DType::f32, kLong),
      compute(dtype, kLong);
  const Array v(DType::f32, kLong);
  the_device().ops().fill_zero(v.vector(kLong), the_device().compute_stream());
  const AdamWStep step{1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.5f, 0.5f, 1.0f};
  const auto moved = static_cast<double>(kLong) * (7 * 4 + (dtype == DType::f32 ? 0 : 2));
  measure(state, "GB/s", moved, [&](Ops& ops, Stream& stream) {
    ops.adamw(master.vector(kLong), gradient.vector(kLong), m.vector(kLong), v.vector(kLong),
              dtype == DType::f32 ? Vector{} : compute.vector(kLong), step, nullptr, stream);
  });
}
BENCHMARK(adamw)->ArgName("type")->DenseRange(0, 2)->UseRealTime()->Unit(benchmark::kMillisecond);

void square_sums(benchmark::State& state) {
  const Array x(DType::f32, kLong);
  std::vector<double> sums(static_cast<std::size_t>(kLong / kSumBlock));
  measure(state, "GB/s", static_cast<double>(kLong) * 4,
          [&](Ops& ops, Stream& stream) { ops.square_sums(x.vector(kLong), sums, stream); });
}
BENCHMARK(square_sums)->UseRealTime()->Unit(benchmark::kMillisecond);

void tree_sum(benchmark::State& state) {
  const Index leaves = state.range(0);
  std::vector<Array> arrays;
  std::vector<const float*> values;
  for (Index i = 0; i < leaves; ++i) arrays.emplace_back(DType::f32, kLong / leaves);
  for (const Array& array : arrays) values.push_back(array.buffer.as<float>());
  const auto merges = plan_folds(CanonicalTree(leaves), 0, leaves, leaves).front().merges;
  measure(state, "GB/s", static_cast<double>(kLong / leaves) * 4 * static_cast<double>(leaves + 1),
          [&](Ops& ops, Stream& stream) {
            ops.tree_sum(values, merges, arrays[0].buffer.as<float>(), kLong / leaves, stream);
          });
}
BENCHMARK(tree_sum)->ArgName("leaves")->Arg(2)->Arg(4)->Arg(8)->UseRealTime()->Unit(benchmark::kMillisecond);

void add(benchmark::State& state) {
  const Array x(DType::f32, kLong), y(DType::f32, kLong);
  measure(state, "GB/s", static_cast<double>(kLong) * 12,
          [&](Ops& ops, Stream& stream) { ops.add(y.vector(kLong), x.vector(kLong), stream); });
}
BENCHMARK(add)->UseRealTime()->Unit(benchmark::kMillisecond);

void fill_zero(benchmark::State& state) {
  const Array y(DType::f32, kLong);
  measure(state, "GB/s", static_cast<double>(kLong) * 4,
          [&](Ops& ops, Stream& stream) { ops.fill_zero(y.vector(kLong), stream); });
}
BENCHMARK(fill_zero)->UseRealTime()->Unit(benchmark::kMillisecond);

void copy_to_bf16(benchmark::State& state) {
  const Array x(DType::f32, kLong), y(DType::bf16, kLong);
  measure(state, "GB/s", static_cast<double>(kLong) * 6, [&](Ops& ops, Stream& stream) {
    ops.copy(x.matrix(kLong / 1024, 1024), y.matrix(kLong / 1024, 1024), stream);
  });
}
BENCHMARK(copy_to_bf16)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 64;
  benchmark::AddCustomContext("device", the_device().description());
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
