// Calls every operation of the emulated CUDA device once for each element type and code path, at small odd
// shapes. With EMU_RECORD its launches become a file, which ptx_test.py runs once more on nvcc's code.
#include <cmath>
#include <cstdlib>
#include <utility>
#include <vector>

#include "cartan/core/exact_sum.hpp"
#include "device/ops_fixture.hpp"

namespace cartan::device {
namespace {

using testing::Array;
using testing::Data;
using testing::Embedded;
using testing::Ints;
using testing::random_ids;
using testing::random_values;
using testing::Slots;
using testing::Values;

Ops& ops() { return testing::device().ops(); }
Stream& stream() { return testing::device().compute_stream(); }

constexpr Index kSequences = 3, kLength = 11, kTokens = kSequences * kLength;
constexpr SequenceShape kShape{kSequences, kLength};

FoldPlan plan() { return plan_folds(CanonicalTree(kSequences), 0, kSequences, kSequences).front(); }

/// Rows that can be moved in packs, or not.
Embedded rows(DType dtype, Index count, Index cols, bool packed, std::string_view name) {
  return {dtype, random_values(count * cols, name), cols, packed ? 0 : 1, packed ? (8 - cols % 8) % 8 : 1};
}

/// A width for each size of a team of threads.
void record_norms(DType dtype, bool packed) {
  for (const Index packs : {6, 15, 40, 140}) {
    const Index cols = packs * static_cast<Index>(16 / size_of(dtype));
    const Index tokens = packs > 100 ? kSequences : kTokens;
    auto x = rows(dtype, tokens, cols, packed, "x"), y = rows(dtype, tokens, cols, packed, "y");
    auto dy = rows(dtype, tokens, cols, packed, "dy"), dx = rows(dtype, tokens, cols, packed, "dx");
    Data weight(dtype, random_values(cols, "weight")), scale(DType::f32, tokens);
    ops().rmsnorm_forward(x.matrix(), weight.vector(), 1e-5f, y.matrix(), scale.vector(), stream());
    const FoldPlan folds = plan();
    Slots dweight(4, cols);
    ops().rmsnorm_backward(x.matrix(), weight.vector(), scale.vector(), dy.matrix(), dx.matrix(), true,
                           {kSequences, tokens / kSequences}, dweight.view(folds), stream());
    stream().synchronize();
  }
}

void record_rows(DType dtype, bool packed) {
  const Index cols = packed ? 40 : 37;
  auto x = rows(dtype, kTokens, cols, packed, "x"), y = rows(dtype, kTokens, cols, packed, "y");
  auto gates = rows(dtype, kTokens, 2 * cols, packed, "gates");
  auto dgates = rows(dtype, kTokens, 2 * cols, packed, "dgates");
  ops().swiglu_forward(gates.matrix(), y.matrix(), stream());
  ops().swiglu_backward(gates.matrix(), x.matrix(), dgates.matrix(), y.matrix(), stream());
  const Index head_dim = 24, pairs = 8;
  auto heads = rows(dtype, kTokens, 2 * head_dim, packed, "heads");
  Data cosines(DType::f32, random_values(kLength * pairs, "cosines"));
  Data sines(DType::f32, random_values(kLength * pairs, "sines"));
  const Ints positions(random_ids(kTokens, kLength, "positions"));
  for (const bool inverse : {false, true})
    ops().rope(heads.matrix(), head_dim, positions, cosines.matrix(pairs), sines.matrix(pairs), inverse,
               stream());
  const Index vocab = 17;
  auto table = rows(dtype, vocab, cols, packed, "table");
  const Ints ids(random_ids(kTokens, vocab, "ids"));
  const FoldPlan folds = plan();
  Slots dtable(4, vocab * cols), dw(4, cols * cols), dbias(4, cols);
  // A slice of the table: it lacks the ids below 2 and from 11 on.
  ops().embedding_forward(ids, table.matrix().row_block(0, 9), 2, y.matrix(), stream());
  ops().embedding_backward(ids, x.matrix(), kShape, 0, vocab, dtable.view(folds), stream());
  auto w = rows(dtype, cols, cols, packed, "w");
  Data bias(dtype, random_values(cols, "bias"));
  ops().linear_forward(x.matrix(), w.matrix(), bias.vector(), y.matrix(), false, kShape, stream());
  ops().linear_backward_weight(y.matrix(), x.matrix(), kShape, dw.view(folds), dbias.view(folds), stream());
  for (const DType other : testing::kComputeTypes) {
    auto copy = rows(other, kTokens, cols, packed, "copy");
    ops().copy(x.matrix(), copy.matrix(), stream());
    auto parts = rows(other, 3 * kTokens, cols, packed, "parts");
    ops().sum_parts(parts.matrix(), 3, x.matrix(), y.matrix(), stream());
    const Array<std::uint64_t> seed(std::vector<std::uint64_t>{0x123456789abcdefull});
    ops().dropout(
        x.matrix(), ids,
        {.factor = 1.5f, .threshold = 1u << 31, .seed = seed.data(), .stream = 5, .first_column = 3},
        y.matrix(), stream());
    ops().dropout(x.matrix(), {}, {.factor = 1.5f}, y.matrix(), stream());
    stream().synchronize();
  }
  ops().all_finite(x.matrix(), stream());
}

void record_loss(DType dtype, bool packed) {
  const Index vocab = 1003, tokens = 5;
  auto logits = rows(DType::f32, tokens, vocab, packed, "logits");
  auto dlogits = rows(dtype, tokens, vocab, packed, "dlogits");
  std::vector<std::int32_t> targets = random_ids(tokens, vocab, "targets");
  targets[2] = -1;
  const Ints placed(targets);
  const Array<float> scale(std::vector<float>{0.5f});
  Data loss(DType::f32, tokens), statistics(DType::f32, random_values(6 * tokens, "statistics"));
  ops().cross_entropy(logits.matrix(), placed, loss.vector(), dlogits.matrix(), scale.data(), stream());
  Data max(DType::f32, tokens), sum(DType::f32, tokens), target(DType::f32, tokens);
  ops().cross_entropy_stats(logits.matrix(), placed, 0, max.vector(), sum.vector(), target.vector(),
                            stream());
  ops().cross_entropy_finish(logits.matrix(), placed, 0, max.vector(), sum.vector(), target.vector(),
                             loss.vector(), dlogits.matrix(), nullptr, stream());
  ops().cross_entropy_combine(statistics.matrix(tokens), 2, max.vector(), sum.vector(), target.vector(),
                              stream());
  stream().synchronize();
}

void record_flat(DType dtype) {
  const Index size = 2051;
  Data master(DType::f32, random_values(size, "master")), gradient(DType::f32, random_values(size, "g"));
  Data first(DType::f32, random_values(size, "m")), second(DType::f32, Values(size, 0.5)),
      compute(dtype, size);
  const AdamWStep step{.lr = 1e-3f,
                       .beta1 = 0.9f,
                       .beta2 = 0.95f,
                       .eps = 1e-8f,
                       .weight_decay = 0.1f,
                       .bias_correction1 = 0.1f,
                       .bias_correction2 = 0.05f,
                       .gradient_scale = 0.25f};
  ops().adamw(master.vector(), gradient.vector(), first.vector(), second.vector(), compute.vector(), step,
              nullptr, stream());
  Array<double> sums(3);
  ops().square_sums(gradient.vector(), sums, stream());
  Array<std::int64_t> words(ExactSum::kWordCount);
  Array<UpdateDecision> decision(1);
  ops().exact_sum(sums, words, stream());
  const Array<LossScaleState> loss_scale(std::vector<LossScaleState>{{64, 1000, 1, 0}});
  const Array<float> of_loss(std::vector<float>{0.5f});
  ops().decide_update(words, {0.25, 1.0}, of_loss.data(), decision.data(), stream());
  ops().update_loss_scale(decision.data(), {}, loss_scale.data(), of_loss.data(), stream());
  ops().adamw(master.vector(), gradient.vector(), first.vector(), second.vector(), compute.vector(), step,
              decision.data(), stream());
  // Not at multiples of 16 bytes.
  const auto from_second_of = [&](Data& x) { return x.vector().slice(1, size - 1); };
  ops().adamw(from_second_of(master), from_second_of(gradient), from_second_of(first), from_second_of(second),
              from_second_of(compute), step, nullptr, stream());
  ops().add(master.vector(), gradient.vector(), stream());
  ops().subtract(from_second_of(master), from_second_of(gradient), stream());
  // As parameters of the kernel, and as a list in memory.
  for (const int count : {3, 500}) {
    std::vector<const float*> values;
    for (int i = 0; i < count; ++i) values.push_back((i % 2 == 0 ? gradient : first).floats());
    std::vector<int> merges(values.size(), 1);
    merges[0] = 0;
    ops().tree_sum(values, merges, master.floats(), 101, stream());
  }
  ops().fill_zero(first.vector(), stream());
  stream().synchronize();
}

void record_compression() {
  // By one block; with rows that depend on others; by many blocks.
  for (const auto& [count, cols] : {std::pair<Index, Index>{7, 300}, {7, 5}, {5, 42001}}) {
    Data x(DType::f32, random_values(count * cols, "x"));
    ops().orthonormalise_rows(x.matrix(cols), stream());
    stream().synchronize();
  }
  const Index size = 5003, most = 123;
  Data x(DType::f32, random_values(size, "x")), values(DType::f32, most);
  Array<std::uint32_t> indices(most);
  ops().take_largest(x.vector(), values.vector(), indices, stream());
  ops().scatter_add(x.vector(), values.vector(), indices, stream());
  stream().synchronize();
}

void record_sampling(bool packed) {
  const Index tokens = 3, vocab = 1003;
  auto logits = rows(DType::f32, tokens, vocab, packed, "logits");
  const Array<double> uniforms(std::vector<double>{0, 0.4, 0.99});
  Ints chosen(static_cast<std::size_t>(tokens));
  const Ints used(std::vector<std::int32_t>{1002, 0, 57});
  ops().penalise_repeats({logits.matrix().data, DType::f32, vocab}, used, 1.3f, stream());
  for (const SamplingRule& rule : {SamplingRule{0, 0, 1}, {1, 0, 1}, {0.8, 50, 0.9}}) {
    ops().sample(logits.matrix(), uniforms, rule, chosen, stream());
    stream().synchronize();
  }
}

void record_fp8(bool packed) {
  // A tile and a part of one, both ways.
  const Index count = 144, cols = 80;
  auto x = rows(DType::bf16, count, cols, packed, "x");
  Array<float> scale(std::vector<float>{50, 1 / 50.0f, 0});
  const Fp8Scale place{scale.data(), scale.data() + 1, scale.data() + 2};
  Array<std::uint8_t> codes(static_cast<std::size_t>(count * cols));
  for (const DType type : {DType::e4m3, DType::e5m2})
    for (const bool transposed : {false, true}) {
      const Matrix out = transposed ? as_matrix(codes.data(), type, cols, count)
                                    : as_matrix(codes.data(), type, count, cols);
      ops().to_fp8(x.matrix(), out, transposed, place, stream());
      stream().synchronize();
    }
}

void record_attention(DType dtype, Index channels, bool packed) {
  // Two tiles; one where a block of the interpreter takes long.
  const Index sequences = 1, length = dtype == DType::f32 && channels > 64 ? 19 : 70, heads = 2, kv_heads = 1;
  const Index tokens = sequences * length;
  const AttentionShape shape{.sequences = sequences,
                             .q_length = length,
                             .k_length = length,
                             .heads = heads,
                             .kv_heads = kv_heads,
                             .head_dim = channels,
                             .scale = 1 / std::sqrt(static_cast<float>(channels))};
  auto q = rows(dtype, tokens, heads * channels, packed, "q"), k = rows(dtype, tokens, channels, packed, "k");
  auto v = rows(dtype, tokens, channels, packed, "v"),
       out = rows(dtype, tokens, heads * channels, packed, "o");
  auto dout = rows(dtype, tokens, heads * channels, packed, "do");
  auto dq = rows(dtype, tokens, heads * channels, packed, "dq");
  auto dk = rows(dtype, tokens, channels, packed, "dk"),
       dv = rows(DType::f32, tokens, channels, packed, "dv");
  std::vector<std::int32_t> starts(static_cast<std::size_t>(tokens), 0);
  for (Index i = length / 2; i < length; ++i)
    starts[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(length / 2);
  const Ints documents(starts);
  Data lse(DType::f32, tokens * heads), sum(DType::f32, Values(tokens * heads * channels, 0.25));
  Data lse_sum(DType::f32, Values(tokens * heads, 0.5));
  ops().attention_forward(shape, q.matrix(), k.matrix(), v.matrix(), documents, out.matrix(), lse.vector(),
                          stream());
  ops().attention_backward(shape, q.matrix(), k.matrix(), v.matrix(), out.matrix(), lse.vector(), documents,
                           dout.matrix(), dq.matrix(), false, dk.matrix(), dv.matrix(), true, stream());
  ops().attention_merge(sum.matrix(heads * channels), lse_sum.vector(), out.matrix(), lse.vector(), channels,
                        stream());
  stream().synchronize();
}

void record_all() {
  for (const DType dtype : testing::kComputeTypes) {
    for (const bool packed : {false, true}) {
      record_norms(dtype, packed);
      record_rows(dtype, packed);
      record_loss(dtype, packed);
    }
    record_flat(dtype);
    for (const Index channels : {32, 64, 96, 128, 256})
      if (dtype != DType::f32 || channels % 64 == 0) record_attention(dtype, channels, channels != 96);
  }
  record_compression();
  for (const bool packed : {false, true}) {
    record_sampling(packed);
    record_fp8(packed);
  }
}

}  // namespace
}  // namespace cartan::device

int main() {
  cartan::device::record_all();
  return 0;
}
