// The end of a step on the device under test, against the host's exact sums.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "cartan/core/exact_sum.hpp"
#include "device/ops_fixture.hpp"

namespace cartan::device {
namespace {

using testing::Array;
using testing::Data;
using testing::random_values;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

class Decision : public ::testing::Test {
 protected:
  ExactSum sum(const std::vector<double>& values) {
    const Array<double> there(values);
    Array<std::int64_t> words(std::vector<std::int64_t>(ExactSum::kWordCount, 77));
    ops_.exact_sum(there, words, stream_);
    const std::vector<std::int64_t> found = words.host();
    return ExactSum(std::span(found).first<ExactSum::kWordCount>());
  }
  UpdateDecision decide(ExactSum squares, const UpdateRule& rule, float loss_scale = 0) {
    const auto words = squares.words();
    const Array<std::int64_t> there(std::vector<std::int64_t>(words.begin(), words.end()));
    Array<UpdateDecision> decision(1);
    const Array<float> scale(std::vector<float>{loss_scale});
    ops_.decide_update(there, rule, loss_scale > 0 ? scale.data() : nullptr, decision.data(), stream_);
    return decision.host().front();
  }
  Ops& ops_ = testing::device().ops();
  Stream& stream_ = testing::device().compute_stream();
};

ExactSum on_host(const std::vector<double>& values) {
  ExactSum sum;
  for (const double value : values) sum.add(value);
  return sum;
}

void expect_same(ExactSum found, ExactSum expected) {
  EXPECT_TRUE(std::ranges::equal(found.words(), expected.words()))
      << found.value() << " instead of " << expected.value();
}

/// Finite numbers with any bits.
std::vector<double> random_bits(std::size_t count) {
  std::mt19937_64 random(5);
  std::vector<double> values;
  while (values.size() < count) {
    const auto value = std::bit_cast<double>(random());
    if (std::isfinite(value)) values.push_back(value);
  }
  return values;
}

TEST_F(Decision, SumsOfAnyNumbersAreExact) {
  for (const std::size_t count : {0, 1, 2, 255, 2047, 2048, 2049, 5000}) {
    const std::vector<double> values = random_bits(count);
    expect_same(sum(values), on_host(values));
  }
}

TEST_F(Decision, SumsOfTinyAndHugeNumbersAreExact) {
  using Limits = std::numeric_limits<double>;
  const double tiny = Limits::denorm_min(), normal = Limits::min(), huge = Limits::max();
  for (const std::vector<double>& values : std::vector<std::vector<double>>{{tiny},
                                                                            {tiny, -tiny},
                                                                            {normal, tiny, 3 * tiny},
                                                                            {huge, huge, -huge},
                                                                            {huge, -tiny},
                                                                            {0.0, -0.0},
                                                                            {1.0, 0x1p-53, 0x1p-106}})
    expect_same(sum(values), on_host(values));
}

TEST_F(Decision, RoundsTheSumAsTheHostDoes) {
  std::vector<std::vector<double>> cases{
      {},
      {4.0},
      {1.0, 0x1p-53},             // a tie, to even
      {1.0, 0x1p-52, 0x1p-53},    // a tie, away from zero
      {1.0, 0x1p-53, 0x1p-1000},  // just above a tie
      {0x1p+1000, -0x1p+999, 0x1p-1000},
      {std::numeric_limits<double>::denorm_min()},
      {std::numeric_limits<double>::max()},
      {0x1p+1023, 0x1p+1023},  // beyond all doubles
  };
  std::mt19937_64 random(3);
  for (int turn = 0; turn < 50; ++turn) {
    std::vector<double> values;
    for (int i = 0; i < 20; ++i)
      values.push_back(
          std::ldexp(static_cast<double>(random() >> 11), static_cast<int>(random() % 400) - 300));
    cases.push_back(values);
  }
  for (const std::vector<double>& values : cases) {
    const ExactSum exact = on_host(values);
    EXPECT_EQ(decide(exact, {1.0, 0}).norm, std::sqrt(exact.value())) << ::testing::PrintToString(values);
  }
}

TEST_F(Decision, ClipsTheNorm) {
  const ExactSum squares = on_host({9.0, 16.0});
  UpdateDecision decision = decide(squares, {0.5, 0});
  EXPECT_EQ(decision.norm, 2.5);
  EXPECT_EQ(decision.gradient_scale, 0.5f);
  EXPECT_EQ(decision.is_applied, 1);
  decision = decide(squares, {0.5, 1.0});
  EXPECT_EQ(decision.norm, 2.5);
  EXPECT_EQ(decision.gradient_scale, static_cast<float>(0.5 * (1.0 / (2.5 + 1e-6))));
  EXPECT_EQ(decide(squares, {0.5, 2.6}).gradient_scale, 0.5f);
}

TEST_F(Decision, TakesTheLossScaleOut) {
  const ExactSum squares = on_host({9.0, 16.0});
  for (const float loss_scale : {1.0f, 4.0f, 384.0f}) {
    const double scale = 0.5 / static_cast<double>(loss_scale);
    const UpdateDecision decision = decide(squares, {0.5, 0}, loss_scale);
    EXPECT_EQ(decision.norm, 5 * scale);
    EXPECT_EQ(decision.gradient_scale, static_cast<float>(scale));
  }
  EXPECT_EQ(decide(squares, {0.5, 0.1}, 4).gradient_scale,
            static_cast<float>(0.125 * (0.1 / (0.625 + 1e-6))));
}

TEST_F(Decision, WhatIsNotFiniteIsNotApplied) {
  for (const double bad : {kInfinity, -kInfinity, kNan}) {
    const UpdateDecision decision = decide(sum({1.0, bad, 2.0}), {1.0, 1.0});
    EXPECT_EQ(decision.is_applied, 0) << bad;
    EXPECT_FALSE(std::isfinite(decision.norm)) << bad;
  }
  EXPECT_EQ(decide(sum({kInfinity, kInfinity}), {1.0, 0}).norm, kInfinity);
  EXPECT_TRUE(std::isnan(decide(sum({kInfinity, -kInfinity}), {1.0, 0}).norm));
}

TEST_F(Decision, AnUpdateFollowsIt) {
  for (const Index size : {1, 9, 2051}) {
    const AdamWStep step{1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.1f, 0.05f, 0.25f};
    AdamWStep other = step;
    other.gradient_scale = 123;
    Data gradient(DType::f32, random_values(size, "g"));
    Data master(DType::f32, random_values(size, "p")), m(DType::f32, size), v(DType::f32, size),
        compute(DType::bf16, size);
    Data master2 = master, m2 = m, v2 = v, compute2 = compute;
    ops_.adamw(master.vector(), gradient.vector(), m.vector(), v.vector(), compute.vector(), step, nullptr,
               stream_);
    const Array<UpdateDecision> applied(std::vector<UpdateDecision>{{1.0, 0.25f, 1}});
    ops_.adamw(master2.vector(), gradient.vector(), m2.vector(), v2.vector(), compute2.vector(), other,
               applied.data(), stream_);
    stream_.synchronize();
    EXPECT_TRUE(master.same_bits(master2) && m.same_bits(m2) && v.same_bits(v2) &&
                compute.same_bits(compute2))
        << size;

    const Array<UpdateDecision> left_out(std::vector<UpdateDecision>{{kInfinity, 0.25f, 0}});
    Data copy(DType::bf16, size);
    ops_.adamw(master2.vector(), gradient.vector(), m2.vector(), v2.vector(), copy.vector(), step,
               left_out.data(), stream_);
    stream_.synchronize();
    EXPECT_TRUE(master.same_bits(master2) && m.same_bits(m2) && v.same_bits(v2)) << size;
    EXPECT_TRUE(compute.same_bits(copy)) << size << ": the copy is written all the same";
  }
}

}  // namespace
}  // namespace cartan::device
