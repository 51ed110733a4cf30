// A head whose logits do not fit one chunk: the parts of a sequence give the loss and gradients of the whole.
#include "cartan/model/head.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "cartan/core/narrow.hpp"
#include "cartan/core/random.hpp"
#include "support/test_device.hpp"

namespace cartan::model {
namespace {

TEST(HeadChunks, AreWholeSequencesWhileTheyAreSmall) {
  const HeadChunks small = head_chunks({8, 128}, 257);
  EXPECT_EQ(small.parts, 1);
  EXPECT_EQ(small.sequences, 8);
  EXPECT_EQ(small.rows, 8 * 128);
  const HeadChunks one = head_chunks({8, 512}, 10000);
  EXPECT_EQ(one.parts, 1);
  EXPECT_EQ(one.sequences, 1);
  for (const Index length : {900, 901, 4096}) {
    const HeadChunks parts = head_chunks({3, length}, 49152);
    EXPECT_GT(parts.parts, 1);
    EXPECT_GE(parts.parts * parts.rows, length);
    EXPECT_LT((parts.parts - 1) * parts.rows, length) << "an empty part";
    EXPECT_LE((parts.rows - 1) * 49152 * 4, Index{32} << 20);
    // The parts of a sequence do not depend on how many sequences are computed together.
    EXPECT_EQ(head_chunks({1, length}, 49152).rows, parts.rows);
  }
}

TEST(HeadChunks, NeedOneSlotMoreWhereAPartStandsAlone) {
  const CanonicalTree tree(4);
  const auto whole = plan_folds(tree, 0, 4, 4), single = plan_folds(tree, 0, 4, 1);
  EXPECT_EQ(head_slots_needed(whole, {4, 1, 0}), 1);
  EXPECT_EQ(head_slots_needed(whole, {1, 1, 0}), 2);
  EXPECT_EQ(head_slots_needed(whole, {1, 2, 0}), 3);
  EXPECT_EQ(head_slots_needed(single, {1, 1, 0}), slots_needed(single));
}

class LargeHead : public ::testing::Test {
 protected:
  static constexpr Index kHidden = 6, kVocab = 20011, kLength = 901, kSequences = 2;

  LargeHead() : device_(cartan::testing::make_test_device(2)) {
    config_.hidden = kHidden;
    config_.vocab = kVocab;
    config_.derive(kVocab);
    const Index rows = kSequences * kLength;
    x_.resize(static_cast<std::size_t>(rows * kHidden));
    matrix_.resize(static_cast<std::size_t>(kVocab * kHidden));
    norm_.assign(kHidden, 1.1f);
    RandomStream(1, "x").fill_normal(0, 0, 1, x_);
    RandomStream(1, "matrix").fill_normal(0, 0, 0.5, matrix_);
    for (Index t = 0; t < rows; ++t)
      targets_.push_back(t % 6 != 1 ? -100 : narrow<std::int32_t>(t * 37 % kVocab));
  }

  struct Result {
    std::vector<float> row_loss, dx, d_norm, d_matrix;
    friend bool operator==(const Result&, const Result&) = default;
  };

  /// Computes `micro` sequences at a time.
  Result run(Index micro) {
    const auto plans = plan_folds(CanonicalTree(kSequences), 0, kSequences, micro);
    const device::SequenceShape shape{micro, kLength};
    const Head head(config_, shape, {});
    const int slots = std::max(slots_needed(plans), head_slots_needed(plans, head.chunks()));
    std::vector<std::vector<float>> matrix_slots(static_cast<std::size_t>(slots),
                                                 std::vector<float>(matrix_.size(), NAN));
    std::vector<std::vector<float>> norm_slots(static_cast<std::size_t>(slots),
                                               std::vector<float>(kHidden, NAN));
    std::vector<float*> matrix_pointers, norm_pointers;
    for (auto& slot : matrix_slots) matrix_pointers.push_back(slot.data());
    for (auto& slot : norm_slots) norm_pointers.push_back(slot.data());
    const Index tokens = shape.tokens();
    Result result;
    result.row_loss.resize(static_cast<std::size_t>(kSequences * kLength));
    result.dx.resize(x_.size());
    const auto matrix = [](std::vector<float>& v, Index rows) {
      return device::as_matrix(v.data(), DType::f32, rows, narrow<Index>(v.size()) / rows);
    };
    const auto vector = [](std::vector<float>& v) {
      return device::Vector{v.data(), DType::f32, narrow<Index>(v.size())};
    };
    for (std::size_t m = 0; m < plans.size(); ++m) {
      const Index first = narrow<Index>(m) * tokens;
      BatchView batch;
      batch.shape = shape;
      batch.targets =
          std::span(targets_).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(tokens));
      const device::ArenaMatrix dx = head.loss_and_gradients(
          batch, matrix(x_, kSequences * kLength).row_block(first, tokens), vector(norm_),
          matrix(matrix_, kVocab), vector(result.row_loss).slice(first, tokens), nullptr,
          {norm_pointers, 0, &plans[m]}, {matrix_pointers, 0, &plans[m]}, {*device_, arena_, DType::f32});
      const auto* values = static_cast<const float*>(dx.data);
      std::copy_n(values, tokens * kHidden, result.dx.begin() + first * kHidden);
    }
    result.d_norm = norm_slots[0];
    result.d_matrix = matrix_slots[0];
    return result;
  }

  std::unique_ptr<device::Device> device_;
  device::Arena arena_{
      device_->allocate(std::size_t{256} << 20, device::MemoryKind::activations, "activations")};
  ModelConfig config_;
  std::vector<float> x_, matrix_, norm_;
  std::vector<std::int32_t> targets_;
};

TEST_F(LargeHead, GivesTheSameBitsForAnyMicroBatch) {
  ASSERT_GT(head_chunks({kSequences, kLength}, kVocab).parts, 1);
  EXPECT_TRUE(run(1) == run(2));
}

TEST_F(LargeHead, MatchesAPlainComputationInDouble) {
  const Result result = run(2);
  std::vector<double> d_matrix(matrix_.size(), 0.0);
  double worst_loss = 0, worst_dx = 0;
  for (Index t = 0; t < kSequences * kLength; ++t) {
    const std::int32_t target = targets_[static_cast<std::size_t>(t)];
    if (target < 0) {
      EXPECT_EQ(result.row_loss[static_cast<std::size_t>(t)], 0);
      continue;
    }
    double square = 0;
    for (Index c = 0; c < kHidden; ++c) square += std::pow(x_[static_cast<std::size_t>(t * kHidden + c)], 2);
    const double inverse = 1 / std::sqrt(square / kHidden + config_.norm_eps);
    std::vector<double> n(kHidden), logits(kVocab), dn(kHidden, 0.0);
    for (Index c = 0; c < kHidden; ++c)
      n[static_cast<std::size_t>(c)] = 1.1f * inverse * x_[static_cast<std::size_t>(t * kHidden + c)];
    for (Index v = 0; v < kVocab; ++v)
      for (Index c = 0; c < kHidden; ++c)
        logits[static_cast<std::size_t>(v)] +=
            n[static_cast<std::size_t>(c)] * matrix_[static_cast<std::size_t>(v * kHidden + c)];
    const double largest = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const double z : logits) sum += std::exp(z - largest);
    const double loss = largest + std::log(sum) - logits[static_cast<std::size_t>(target)];
    worst_loss = std::max(worst_loss, std::abs(loss - result.row_loss[static_cast<std::size_t>(t)]));
    for (Index v = 0; v < kVocab; ++v) {
      const double p = std::exp(logits[static_cast<std::size_t>(v)] - largest) / sum - (v == target ? 1 : 0);
      for (Index c = 0; c < kHidden; ++c) {
        d_matrix[static_cast<std::size_t>(v * kHidden + c)] += p * n[static_cast<std::size_t>(c)];
        dn[static_cast<std::size_t>(c)] += p * matrix_[static_cast<std::size_t>(v * kHidden + c)];
      }
    }
    double dot = 0;
    for (Index c = 0; c < kHidden; ++c)
      dot += dn[static_cast<std::size_t>(c)] * 1.1f * x_[static_cast<std::size_t>(t * kHidden + c)];
    for (Index c = 0; c < kHidden; ++c) {
      const auto at = static_cast<std::size_t>(t * kHidden + c);
      const double dx =
          inverse * (dn[static_cast<std::size_t>(c)] * 1.1f - x_[at] * dot * inverse * inverse / kHidden);
      worst_dx = std::max(worst_dx, std::abs(dx - result.dx[at]));
    }
  }
  EXPECT_LT(worst_loss, 2e-5);
  EXPECT_LT(worst_dx, 2e-5);
  double worst = 0;
  for (std::size_t i = 0; i < d_matrix.size(); ++i)
    worst = std::max(worst, std::abs(d_matrix[i] - static_cast<double>(result.d_matrix[i])));
  EXPECT_LT(worst, 1e-4);  // sums of up to 301 terms of order 1
}

}  // namespace
}  // namespace cartan::model
