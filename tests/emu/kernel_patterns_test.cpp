// How every kernel uses the memory system where rows are packed and tiles are full, at shapes like those of
// models: what the head of its file promises. A kernel that is not listed here fails a test.
#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <regex>

#include "cartan/core/exact_sum.hpp"
#include "device/ops_fixture.hpp"
#include "emu/access_patterns.hpp"
#include "emu/emu_fixture.hpp"

namespace emu::testing {
namespace {

using cartan::DType;
using cartan::FoldPlan;
using cartan::Index;
using cartan::device::AttentionShape;
using cartan::device::testing::Array;
using cartan::device::testing::Data;
using cartan::device::testing::Ints;
using cartan::device::testing::random_ids;
using cartan::device::testing::random_values;
using cartan::device::testing::Slots;

/// What a kernel asks of the memory system.
struct Use {
  /// Sectors of all requests, in bytes, over the bytes that it must move: also what caches give a second
  /// time.
  double moved = 1.0;
  double excess = 1.0;   ///< sectors over what the bytes of each request need: 1 where lanes lie side by side
  double access = 16.0;  ///< bytes that a thread moves at once, on average
  double passes = 1.0;   ///< of a request to shared memory, over the least: 1 without bank conflicts
};

class KernelPatterns : public Emulated {
 protected:
  KernelPatterns() {
    config.race = false;
    config.profile = true;
    config.timeout_s = 60;
    forget_patterns();
  }
  ~KernelPatterns() override {
    if (HasFailure()) print_patterns();
    forget_patterns();
  }

  static Data random(Index size, DType dtype = DType::bf16) {
    return {dtype, random_values(size, "a pattern")};
  }
  static FoldPlan folds(Index sequences) {
    return plan_folds(cartan::CanonicalTree(sequences), 0, sequences, sequences).front();
  }

  /// What the kernel has done since the test began, or since patterns were forgotten. A promise that is too
  /// modest fails as well: it would notice less.
  void expect(const std::string& kernel, double bytes, const Use& use = {}) {
    stream_.synchronize();
    const auto is = [](double promised) { return ::testing::DoubleNear(promised, 0.01 * promised); };
    EXPECT_THAT(static_cast<double>(sector_bytes_moved(kernel)) / bytes, is(use.moved)) << kernel;
    EXPECT_THAT(sector_excess(kernel), is(use.excess)) << kernel;
    EXPECT_THAT(bytes_per_access(kernel), is(use.access)) << kernel;
    EXPECT_THAT(bank_passes(kernel), is(use.passes)) << kernel;
  }

  cartan::device::Ops& ops_ = cartan::device::testing::device().ops();
  cartan::device::Stream& stream_ = cartan::device::testing::device().compute_stream();
};

TEST_F(KernelPatterns, OfTheGatedActivation) {
  constexpr Index kRows = 6, kWidth = 512, kSize = kRows * kWidth;
  Data gates = random(2 * kSize), y = random(kSize), dgates = random(2 * kSize), again = random(kSize);
  ops_.swiglu_forward(gates.matrix(2 * kWidth), y.matrix(kWidth), stream_);
  ops_.swiglu_backward(gates.matrix(2 * kWidth), y.matrix(kWidth), dgates.matrix(2 * kWidth),
                       again.matrix(kWidth), stream_);
  expect("swiglu_forward_kernel", 6 * kSize);
  expect("swiglu_backward_kernel", 12 * kSize);
}

/// Groups of columns: heads, rows that a warp takes and rows that a block takes.
struct NormCase {
  Index width;
  Use forward, backward, weight, fold;
};
void PrintTo(const NormCase& shape, std::ostream* out) { *out << shape.width << " columns"; }
class NormPatterns : public KernelPatterns, public ::testing::WithParamInterface<NormCase> {};
// Every group twice, the second time from the L1 cache, and the weight, which groups of a warp share.
INSTANTIATE_TEST_SUITE_P(Widths, NormPatterns,
                         ::testing::Values(NormCase{64,
                                                    {.moved = 1.656, .access = 15.64},
                                                    {.moved = 1.641, .access = 14.67},
                                                    {.moved = 1.062, .excess = 1.015, .access = 11.68},
                                                    {.moved = 1.125, .access = 4}},
                                           NormCase{128,
                                                    {.moved = 1.781, .access = 15.82},
                                                    {.moved = 1.766, .access = 14.67},
                                                    {.moved = 1.094, .excess = 1.045, .access = 11.68},
                                                    {.moved = 1.25, .access = 4}},
                                           NormCase{768,
                                                    {.moved = 2.010},
                                                    {.moved = 2.005, .access = 15.52},
                                                    {.moved = 1.156, .excess = 1.104, .access = 11.68},
                                                    {.moved = 2, .access = 4}},
                                           NormCase{2048,
                                                    {.moved = 2.004},
                                                    {.moved = 2.016, .access = 14.67},
                                                    {.moved = 1.156, .excess = 1.104, .access = 11.68},
                                                    {.moved = 2, .access = 4}}));

TEST_P(NormPatterns, OfTheNorm) {
  const auto& [width, forward, backward, weight_sums, fold] = GetParam();
  const Index row = std::max(width, Index{512}), rows = 64, size = rows * row;
  Data x = random(size), weight = random(width), y = random(size), dx = random(size);
  Data inv_rms = random(size / width, DType::f32);
  ops_.rmsnorm_forward(x.matrix(row), weight.vector(), 1e-5f, y.matrix(row), inv_rms.vector(), stream_);
  const FoldPlan plan = folds(1);
  Slots dweight(1, width);
  ops_.rmsnorm_backward(x.matrix(row), weight.vector(), inv_rms.vector(), y.matrix(row), dx.matrix(row), true,
                        {1, rows}, dweight.view(plan), stream_);
  expect("rmsnorm_forward_kernel", static_cast<double>(4 * size), forward);
  expect("rmsnorm_backward_kernel", static_cast<double>(8 * size), backward);
  expect("rmsnorm_weight_kernel", static_cast<double>(4 * size), weight_sums);
  expect("fold_pieces_kernel", static_cast<double>(4 * size / 64), fold);
}

TEST_F(KernelPatterns, OfRotaryEmbeddings) {
  constexpr Index kRows = 32, kHeads = 8, kHeadDim = 128, kSize = kRows * kHeads * kHeadDim;
  Data x = random(kSize), angles = random(kRows * kHeadDim / 2, DType::f32);
  std::vector<std::int32_t> positions(kRows);
  std::iota(positions.begin(), positions.end(), 0);
  ops_.rope(x.matrix(kHeads * kHeadDim), kHeadDim, Ints(positions), angles.matrix(kHeadDim / 2),
            angles.matrix(kHeadDim / 2), false, stream_);
  // The angles of a head, which the others share, and two packs of them a thread.
  expect("rope_kernel", 4 * kSize, {.moved = 1.516, .excess = 1.198, .access = 14.67});
}

TEST_F(KernelPatterns, OfTheTokenTable) {
  constexpr Index kTokens = 64, kWidth = 512, kVocab = 256, kSequences = 2;
  Data table = random(kVocab * kWidth), out = random(kTokens * kWidth);
  const Ints ids(random_ids(kTokens, kVocab, "ids"));
  ops_.embedding_forward(ids, table.matrix(kWidth), 0, out.matrix(kWidth), stream_);
  const FoldPlan plan = folds(kSequences);
  Slots dtable(2, kVocab * kWidth);
  ops_.embedding_backward(ids, out.matrix(kWidth), {kSequences, kTokens / kSequences}, 0, kVocab,
                          dtable.view(plan), stream_);
  std::vector<std::int32_t> seen = ids.host();
  std::sort(seen.begin(), seen.end());
  const Index listed = std::unique(seen.begin(), seen.end()) - seen.begin();
  expect("embedding_forward_kernel", 4 * kTokens * kWidth, {.moved = 1.031, .access = 12});
  expect("token_lists_kernel", 8 * kTokens * kVocab, {.moved = 0.753, .access = 4});
  // A column a thread; where its row's tokens are, every warp looks up.
  expect("embedding_rows_kernel", 2 * kTokens * kWidth + 4 * listed * kWidth,
         {.moved = 2.139, .access = 3.76});
  expect("embedding_zero_rows_kernel", 4 * (kVocab - listed) * kWidth, {.moved = 1.162, .access = 7.35});
}

TEST_F(KernelPatterns, OfTheLoss) {
  constexpr Index kRows = 4, kVocab = 8192, kSize = kRows * kVocab;
  Data logits = random(kSize, DType::f32), dlogits = random(kSize), loss = random(kRows, DType::f32);
  const Ints targets(random_ids(kRows, kVocab, "targets"));
  ops_.cross_entropy(logits.matrix(kVocab), targets, loss.vector(), dlogits.matrix(kVocab), nullptr, stream_);
  Data maxima = random(kRows, DType::f32), sums = random(kRows, DType::f32),
       picked = random(kRows, DType::f32);
  ops_.cross_entropy_stats(logits.matrix(kVocab), targets, 0, maxima.vector(), sums.vector(), picked.vector(),
                           stream_);
  ops_.cross_entropy_finish(logits.matrix(kVocab), targets, 0, maxima.vector(), sums.vector(),
                            picked.vector(), loss.vector(), dlogits.matrix(kVocab), nullptr, stream_);
  constexpr Index kTokens = 256, kParts = 2;
  Data stacked = random(3 * kParts * kTokens, DType::f32), a = random(kTokens, DType::f32),
       b = random(kTokens, DType::f32), c = random(kTokens, DType::f32);
  ops_.cross_entropy_combine(stacked.matrix(kTokens), kParts, a.vector(), b.vector(), c.vector(), stream_);
  // Two packs of logits a thread.
  expect("cross_entropy_kernel", 10 * kSize, {.moved = 1.813, .excess = 1.790, .access = 14});
  expect("cross_entropy_stats_kernel", 4 * kSize, {.moved = 2.005, .excess = 1.995});
  expect("cross_entropy_finish_kernel", 6 * kSize, {.moved = 1.699, .excess = 1.646, .access = 12});
  expect("cross_entropy_combine_kernel", 4 * (3 * kParts + 3) * kTokens, {.moved = 1.222, .access = 4});
}

TEST_F(KernelPatterns, OfTheOptimizer) {
  constexpr Index kSize = 8192;
  Data master = random(kSize, DType::f32), gradient = random(kSize, DType::f32),
       first = random(kSize, DType::f32), second(DType::f32, kSize), compute = random(kSize);
  ops_.adamw(master.vector(), gradient.vector(), first.vector(), second.vector(), compute.vector(), {},
             nullptr, stream_);
  expect("adamw_kernel", 30 * kSize, {.access = 15});
}

TEST_F(KernelPatterns, OfTheEndOfAStep) {
  constexpr Index kBlocks = 1024, kSize = kBlocks * cartan::device::kSumBlock / 16;
  Data x = random(kSize, DType::f32);
  Array<double> sums(kBlocks / 16), many(std::vector<double>(kBlocks, 1.0));
  ops_.square_sums(x.vector(), sums, stream_);
  Array<std::int64_t> words(cartan::ExactSum::kWordCount);
  ops_.exact_sum(many, words, stream_);
  Array<cartan::device::UpdateDecision> decision(1);
  ops_.decide_update(words, {}, nullptr, decision.data(), stream_);
  const Array<cartan::device::LossScaleState> scale(std::vector<cartan::device::LossScaleState>(1));
  const Array<float> of_loss(1);
  ops_.update_loss_scale(decision.data(), {}, scale.data(), of_loss.data(), stream_);
  expect("square_sums_kernel", 4 * kSize, {.access = 4});
  expect("exact_sum_kernel", 8 * kBlocks, {.access = 8});
  expect("decide_update_kernel", 8 * 71, {.moved = 1.183, .access = 7.89});
  expect("update_loss_scale_kernel", 72, {.moved = 4.444, .access = 6.4});
}

TEST_F(KernelPatterns, OfTheChoiceOfAToken) {
  constexpr Index kVocab = 8192;
  Data logits = random(kVocab, DType::f32);
  const Array<double> uniform(std::vector<double>{0.5});
  const Array<std::int32_t> token(1);
  const auto choose = [&](const cartan::device::SamplingRule& rule) {
    forget_patterns();
    ops_.sample(logits.matrix(kVocab), uniform, rule, {token.data(), 1}, stream_);
  };
  // Two packs of logits a thread, in each pass.
  choose({});
  expect("sample_kernel", 4 * kVocab, {.moved = 2.001, .excess = 1.999});
  choose({0.7, 0, 1});
  expect("sample_kernel", 8 * kVocab, {.moved = 2.134, .excess = 1.991, .access = 15.16});
  // Additions to a histogram fall on any bins.
  choose({0.7, 40, 0.9});
  expect("sample_kernel", 36 * kVocab, {.moved = 2.030, .excess = 1.998, .access = 15.79, .passes = 3.6});
  // At random addresses.
  constexpr Index kUsed = 64;
  std::vector<std::int32_t> used;
  for (Index i = 0; i < kUsed; ++i) used.push_back(static_cast<std::int32_t>(i * 61 % kVocab));
  const Array<std::int32_t> ids(used);
  ops_.penalise_repeats({logits.floats(), DType::f32, kVocab}, ids, 1.2f, stream_);
  expect("penalise_repeats_kernel", 12 * kUsed, {.moved = 5.667, .excess = 5.667, .access = 4});
}

TEST_F(KernelPatterns, OfSums) {
  constexpr Index kSize = 4096;
  Data x = random(kSize, DType::f32), y = random(kSize, DType::f32);
  for (const int count : {8, 400}) {
    std::vector<const float*> values(static_cast<std::size_t>(count), x.floats());
    std::vector<int> merges(values.size(), 1);
    merges[0] = 0;
    ops_.tree_sum(values, merges, y.floats(), kSize / (count / 8), stream_);
  }
  constexpr Index kRows = 64, kWidth = 256, kParts = 4;
  Data stacked = random(kParts * kRows * kWidth), residual = random(kRows * kWidth),
       out = random(kRows * kWidth);
  ops_.sum_parts(stacked.matrix(kWidth), kParts, residual.matrix(kWidth), out.matrix(kWidth), stream_);
  const FoldPlan plan = folds(1);
  Slots bias(1, kWidth);
  ops_.column_sums(residual.matrix(kWidth), {1, kRows}, bias.view(plan), stream_);
  ops_.all_finite(residual.matrix(kWidth), stream_);
  // The long list is read by every warp, a value at a time.
  expect("tree_sum_kernel", 4 * kSize * 9 + 4 * (kSize / 50) * 401, {.moved = 1.133, .access = 10.49});
  expect("tree_list_kernel", 10 * 400, {.access = 5});
  expect("sum_parts_kernel", 2 * (kParts + 2) * kRows * kWidth);
  // And the partial sums, two packs of them a thread.
  expect("column_sums_kernel", 2 * kRows * kWidth, {.moved = 1.125, .excess = 1.059});
  // And the gradient.
  expect("fold_pieces_kernel", 4 * 2 * kWidth, {.moved = 1.5, .access = 4});
  expect("find_nonfinite_kernel", 2 * kRows * kWidth);

  // Two packs a thread.
  Data wide = random(kParts * kRows * kWidth, DType::f32);
  forget_patterns();
  ops_.sum_parts(wide.matrix(kWidth), kParts, residual.matrix(kWidth), out.matrix(kWidth), stream_);
  ops_.all_finite(wide.matrix(kWidth), stream_);
  expect("sum_parts_kernel", (4 * kParts + 4) * kRows * kWidth, {.moved = 1.8, .excess = 1.8});
  expect("find_nonfinite_kernel", 4 * kParts * kRows * kWidth, {.moved = 2, .excess = 2});
}

TEST_F(KernelPatterns, OfCopies) {
  constexpr Index kRows = 8, kWidth = 512, kSize = kRows * kWidth;
  Data x = random(kSize), y = random(kSize);
  ops_.copy(x.matrix(kWidth), y.matrix(kWidth), stream_);
  expect("copy_kernel", 4 * kSize);
  forget_patterns();
  // And the seed and the number of the row, a sector each a warp, read by every thread.
  const Ints numbers(std::vector<std::int32_t>(kRows, 3));
  const Array<std::uint64_t> seed({7});
  ops_.dropout(x.matrix(kWidth), numbers, {.factor = 2, .threshold = 1u << 30, .seed = seed.data()},
               y.matrix(kWidth), stream_);
  expect("dropout_kernel", 4 * kSize, {.moved = 1.0625, .access = 11});
  forget_patterns();
  Data wide = random(kSize, DType::f32), other = random(kSize, DType::f32);
  ops_.copy(wide.matrix(kWidth), y.matrix(kWidth), stream_);
  ops_.add(wide.vector(), other.vector(), stream_);
  expect("copy_kernel", 6 * kSize, {.access = 12});
  expect("add_kernel", 12 * kSize);
}

TEST_F(KernelPatterns, OfEightBits) {
  constexpr Index kRows = 256, kWidth = 128, kSize = kRows * kWidth;
  Data x = random(kSize);
  Array<float> numbers(std::vector<float>{50, 1 / 50.0f, 0});
  Array<std::uint8_t> codes(static_cast<std::size_t>(kSize));
  for (const bool transposed : {false, true}) {
    const Index rows = transposed ? kWidth : kRows;
    forget_patterns();
    ops_.to_fp8(x.matrix(kWidth), cartan::device::as_matrix(codes.data(), DType::e4m3, rows, kSize / rows),
                transposed, {numbers.data(), numbers.data() + 1, numbers.data() + 2}, stream_);
    expect("to_fp8_kernel", 3 * kSize, {.moved = 1.0104, .access = transposed ? 14.29 : 11.11});
  }
}

TEST_F(KernelPatterns, OfCompression) {
  constexpr Index kRows = 4, kCols = 512;
  Data narrow = random(kRows * kCols, DType::f32);
  ops_.orthonormalise_rows(narrow.matrix(kCols), stream_);
  constexpr Index kWide = 66 * 1024;
  Data wide = random(kRows * kWide, DType::f32);
  ops_.orthonormalise_rows(wide.matrix(kWide), stream_);
  constexpr Index kSize = 8192, kMost = 128;
  Data x = random(kSize, DType::f32), values(DType::f32, kMost);
  Array<std::uint32_t> indices(kMost);
  ops_.take_largest(x.vector(), values.vector(), indices, stream_);
  ops_.scatter_add(x.vector(), values.vector(), indices, stream_);
  // One element a thread.
  expect("orthonormalise_kernel", 12 * kRows * kRows * kCols, {.moved = 1.917, .access = 4});
  expect("shares_kernel", 8 * kRows * (kRows + 1) * kWide, {.moved = 1.010, .access = 4});
  // Each block adds up what all of them found.
  expect("subtract_kernel", 8 * (kRows * (kRows - 1) / 2 + 2 * kRows) * kWide,
         {.moved = 1.380, .excess = 1.247, .access = 4.17});
  expect("scale_kernel", 16 * kRows * kWide, {.moved = 1.578, .access = 5.06});
  expect("replace_kernel", 16 * 32 * kRows, {.access = 4});  // a sector a warp
  expect("begin_selection_kernel", 8 * 3 * 2048, {.access = 8});
  // Two packs a thread.
  expect("count_digits_kernel", 3 * 4 * kSize, {.moved = 2.016, .excess = 1.985, .access = 13.6});
  expect("count_taken_kernel", 4 * kSize, {.moved = 2.020, .excess = 1.981, .access = 13.59});
  expect("take_kernel", 4 * kSize, {.moved = 2.283, .excess = 1.990, .access = 10.86});
  // Small work of one block.
  expect("pick_digit_kernel", 8 * (2 * 2048 + 1024), {.moved = 3.682, .excess = 1.768, .access = 8});
  expect("scan_pieces_kernel", 4 * 8 * 2, {.moved = 2, .access = 8});
  // At random addresses.
  expect("scatter_add_kernel", 16 * kMost, {.moved = 4.344, .excess = 4.344, .access = 4});
}

struct AttentionCase {
  DType dtype;
  Index head_dim;
  Use forward, dq, dkv, delta, merge;
};
void PrintTo(const AttentionCase& shape, std::ostream* out) {
  *out << cartan::name_of(shape.dtype) << ", " << shape.head_dim << " channels";
}
class AttentionPatterns : public KernelPatterns, public ::testing::WithParamInterface<AttentionCase> {};
// K and V once for each tile of rows (forward) or keys (backward), or q and dout the other way round. A
// result's elements are stored one by one, four sectors where one would do. Passes beyond 1 in dkv: of 16
// bits where lanes skip half of a comparison in masked tiles (no conflict); of fp32 in two stores for 32
// rows.
INSTANTIATE_TEST_SUITE_P(
    HeadDimensions, AttentionPatterns,
    ::testing::Values(AttentionCase{DType::bf16,
                                    64,
                                    {.moved = 1.766, .excess = 1.738, .access = 5.72},
                                    {.moved = 1.819, .excess = 1.492, .access = 7.03},
                                    {.moved = 2.198, .excess = 1.835, .access = 5.29, .passes = 1.059},
                                    {.moved = 1.062, .access = 15.29},
                                    {.moved = 1.15, .access = 3.43}},
                      AttentionCase{DType::bf16,
                                    128,
                                    {.moved = 2.008, .excess = 1.596, .access = 6.60},
                                    {.moved = 1.809, .excess = 1.496, .access = 7.20},
                                    {.moved = 2.182, .excess = 1.846, .access = 5.31, .passes = 1.059},
                                    {.moved = 1.031, .access = 15.64},
                                    {.moved = 1.075, .access = 3.39}},
                      AttentionCase{DType::f32,
                                    64,
                                    {.moved = 2.516, .excess = 1.425, .access = 4},
                                    {.moved = 2.219, .excess = 1.371, .access = 4},
                                    {.moved = 2.526, .excess = 1.655, .access = 4, .passes = 2},
                                    {.moved = 2.031, .excess = 1.970, .access = 15.64},
                                    {.moved = 1.125, .access = 4}},
                      AttentionCase{DType::f32,
                                    128,
                                    {.moved = 2.508, .excess = 1.427, .access = 4},
                                    {.moved = 2.209, .excess = 1.373, .access = 4},
                                    {.moved = 2.513, .excess = 1.661, .access = 4, .passes = 2},
                                    {.moved = 2.016, .excess = 1.985, .access = 15.82},
                                    {.moved = 1.062, .access = 4}}));

TEST_P(AttentionPatterns, OfAttention) {
  const auto& [dtype, head_dim, forward, dq_use, dkv_use, delta, merge] = GetParam();
  const Index length = 128, size = length * head_dim;
  const AttentionShape shape{.sequences = 1,
                             .q_length = length,
                             .k_length = length,
                             .heads = 1,
                             .kv_heads = 1,
                             .head_dim = head_dim};
  Data q = random(size, dtype), k = random(size, dtype), v = random(size, dtype), out = random(size, dtype);
  Data lse = random(length, DType::f32);
  const Ints starts(std::vector<std::int32_t>(static_cast<std::size_t>(length), 0));
  ops_.attention_forward(shape, q.matrix(head_dim), k.matrix(head_dim), v.matrix(head_dim), starts,
                         out.matrix(head_dim), lse.vector(), stream_);
  Data dout = random(size, dtype), dq = random(size, dtype), dk = random(size, dtype),
       dv = random(size, dtype);
  ops_.attention_backward(shape, q.matrix(head_dim), k.matrix(head_dim), v.matrix(head_dim),
                          out.matrix(head_dim), lse.vector(), starts, dout.matrix(head_dim),
                          dq.matrix(head_dim), false, dk.matrix(head_dim), dv.matrix(head_dim), false,
                          stream_);
  Data sum = random(size, DType::f32), lse_sum = random(length, DType::f32);
  ops_.attention_merge(sum.matrix(head_dim), lse_sum.vector(), out.matrix(head_dim), lse.vector(), head_dim,
                       stream_);
  const Index element = static_cast<Index>(cartan::size_of(dtype));
  const auto bytes = [&](Index of_element) { return static_cast<double>(of_element * size); };
  const std::string kind = dtype == DType::f32 ? "_fp32_kernel" : "_kernel";
  expect("attention_forward" + kind, bytes(4 * element), forward);
  expect("attention_dq" + kind, bytes(5 * element), dq_use);
  expect("attention_dkv" + kind, bytes(6 * element), dkv_use);
  expect("attention_delta_kernel", bytes(2 * element), delta);
  expect("attention_merge_kernel", bytes(8 + element), merge);
}

/// Every kernel of kernels/ has its line above.
TEST(KernelPatternsTest, KnowsEveryKernel) {
  const auto text_of = [](const std::filesystem::path& path) {
    std::ifstream file(path);
    EXPECT_TRUE(file) << path;
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::filesystem::path source = CARTAN_SOURCE_DIR;
  const std::string here = text_of(source / "tests/emu/kernel_patterns_test.cpp");
  const std::regex definition(R"((\w+?)(_fp32)?_kernel\()");
  int kernels = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source / "kernels")) {
    if (!entry.is_regular_file()) continue;
    const std::string text = text_of(entry.path());
    for (std::sregex_iterator found(text.begin(), text.end(), definition), end; found != end; ++found) {
      const std::string name = (*found)[1].str();
      EXPECT_TRUE(here.find("expect(\"" + name + "_kernel\"") != here.npos ||
                  here.find("expect(\"" + name + "\" + kind") != here.npos)
          << name << (*found)[2].str() << "_kernel of " << entry.path().filename()
          << " has no line in this test";
      ++kernels;
    }
  }
  EXPECT_GT(kernels, 40);
}

}  // namespace
}  // namespace emu::testing
