// The next token of each row of logits, against a reference that sorts.
#include "cartan/device/sampling.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cfloat>
#include <limits>
#include <numeric>
#include <set>

#include "cartan/core/error.hpp"
#include "device/ops_fixture.hpp"

namespace cartan::device {
namespace {

using testing::Array;
using testing::Data;
using testing::Embedded;
using testing::random_values;
using testing::Values;
using Tokens = std::vector<std::int32_t>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kNan = std::numeric_limits<double>::quiet_NaN();
const double kBelowOne = std::nextafter(1.0, 0.0);

/// The definition of Ops::sample, word by word.
std::int32_t reference(const Values& row, double uniform, const SamplingRule& rule) {
  if (std::any_of(row.begin(), row.end(), [](double x) { return std::isnan(x); })) return -1;
  const double largest = *std::max_element(row.begin(), row.end());
  if (std::isinf(largest)) return -1;
  std::vector<std::int32_t> ids(row.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto logit = [&](std::int32_t id) { return row[static_cast<std::size_t>(id)]; };
  std::stable_sort(ids.begin(), ids.end(),
                   [&](std::int32_t a, std::int32_t b) { return logit(a) > logit(b); });
  if (rule.temperature == 0) return ids[0];
  const auto weight = [&](std::int32_t id) {
    return std::floor(std::exp((logit(id) - largest) / rule.temperature) * 0x1p40);
  };
  const auto weight_of = [&](const std::vector<std::int32_t>& some) {
    return std::accumulate(some.begin(), some.end(), 0.0L,
                           [&](long double sum, std::int32_t id) { return sum + weight(id); });
  };
  if (rule.top_k > 0 && rule.top_k < std::ssize(ids)) ids.resize(static_cast<std::size_t>(rule.top_k));
  if (rule.top_p < 1) {
    const long double wanted = rule.top_p * weight_of(ids);
    std::size_t count = 0;
    for (long double sum = 0; count == 0 || sum < wanted; ++count) sum += weight(ids[count]);
    ids.resize(count);
  }
  std::sort(ids.begin(), ids.end());
  const long double target = uniform * weight_of(ids);
  long double sum = 0;
  for (const std::int32_t id : ids) {
    sum += weight(id);
    if (sum > target) return id;
  }
  return -2;
}

Values part(const Values& all, Index row, Index cols) {
  const auto begin = all.begin() + row * cols;
  return {begin, begin + cols};
}

class Sampling : public ::testing::Test {
 protected:
  Tokens sample(ConstMatrix logits, const std::vector<double>& uniforms, const SamplingRule& rule) {
    const Array<double> placed(uniforms);
    Array<std::int32_t> tokens(Tokens(uniforms.size(), -7));
    ops_.sample(logits, placed, rule, tokens, stream_);
    stream_.synchronize();
    return tokens.host();
  }
  /// One row, for each of the numbers.
  Tokens sample_row(const Values& row, const std::vector<double>& uniforms, const SamplingRule& rule) {
    Data data(DType::f32, row);
    const Matrix logits = data.matrix(std::ssize(row));
    Tokens tokens;
    for (const double uniform : uniforms) tokens.push_back(sample(logits, {uniform}, rule)[0]);
    return tokens;
  }
  void expect_reference(const Values& rows, Index cols, const std::vector<double>& uniforms,
                        const SamplingRule& rule) {
    Data data(DType::f32, rows);
    const Tokens tokens = sample(data.matrix(cols), uniforms, rule);
    for (std::size_t t = 0; t < tokens.size(); ++t)
      EXPECT_EQ(tokens[t], reference(part(rows, static_cast<Index>(t), cols), uniforms[t], rule))
          << "row " << t << " of " << cols << ", " << uniforms[t] << ", temperature " << rule.temperature
          << ", top_k " << rule.top_k << ", top_p " << rule.top_p;
  }

  Ops& ops_ = testing::device().ops();
  Stream& stream_ = testing::device().compute_stream();
};

/// The same row, so often.
Values repeated(const Values& row, std::size_t times) {
  Values all;
  for (std::size_t i = 0; i < times; ++i) all.insert(all.end(), row.begin(), row.end());
  return all;
}

/// From 0 to just below 1.
std::vector<double> spread(std::size_t count) {
  std::vector<double> uniforms{0, kBelowOne};
  for (std::size_t i = 0; i < count; ++i)
    uniforms.push_back((static_cast<double>(i) + 0.37) / static_cast<double>(count));
  return uniforms;
}

TEST_F(Sampling, ChoosesWhatTheReferenceChooses) {
  for (const Index cols : {1, 2, 31, 32, 33, 255, 256, 257, 1023, 1024, 1025, 4099, 70001}) {
    const std::vector<double> uniforms = cols > 10000 ? std::vector<double>{0.4, kBelowOne} : spread(2);
    const Values rows = random_values(cols * std::ssize(uniforms), "logits", 4.0);
    for (const SamplingRule& rule : {SamplingRule{0, 0, 1},
                                     {1, 0, 1},
                                     {0.7, 40, 1},
                                     {1.3, 0, 0.9},
                                     {2, 300, 0.75},
                                     {1, 1, 1},
                                     {1, cols, 0.5},
                                     {0.01, 0, 0.999}})
      expect_reference(rows, cols, uniforms, rule);
  }
}

TEST_F(Sampling, OfEqualLogitsTheLowestIdsAreKept) {
  const std::vector<double> uniforms = spread(2);
  for (const Index cols : {7, 33, 1030}) {
    Values row;
    for (Index i = 0; i < cols; ++i) row.push_back(static_cast<double>(i * 7919 % 3));
    const Values rows = repeated(row, uniforms.size());
    for (Index k = 1; k <= cols + 1; k += cols > 100 ? 97 : 1)
      expect_reference(rows, cols, uniforms, {1, k, 1});
    for (const double p : {1e-9, 0.1, 0.5, 0.7, kBelowOne, 2.0}) {
      expect_reference(rows, cols, uniforms, {1, 0, p});
      expect_reference(rows, cols, uniforms, {1, cols / 2, p});
    }
  }
  // Half of the weight is two of four tokens, not three.
  const Tokens tokens = sample_row({1, 1, 1, 1}, {0, 0.49, 0.5, kBelowOne}, {1, 0, 0.5});
  EXPECT_EQ(tokens, (Tokens{0, 0, 1, 1}));
}

TEST_F(Sampling, ZeroTemperatureTakesTheFirstOfTheLargest) {
  EXPECT_EQ(sample_row({0, 2, 1, 2, -3}, {kBelowOne}, {0, 0, 1}), Tokens{1});
  EXPECT_EQ(sample_row({-5, -0.0, 0.0, -0.0}, {0.5}, {0, 3, 0.9}), Tokens{1});
  EXPECT_EQ(sample_row({-kInfinity, -FLT_MAX, -kInfinity}, {0.5}, {0, 0, 1}), Tokens{1});
  Values row(70001, -1.5);
  row[40000] = row[69999] = -1.25;
  EXPECT_EQ(sample_row(row, {0.5}, {0, 0, 1}), Tokens{40000});
}

TEST_F(Sampling, BothZerosAreEqual) {
  EXPECT_EQ(sample_row({-1, -0.0, 0.0, -0.0, -9}, spread(8), {1, 2, 1}),
            sample_row({-1, 0.0, -0.0, 0.0, -9}, spread(8), {1, 2, 1}));
  EXPECT_EQ(sample_row({-0.0, 0.0}, {0.49, 0.5}, {1, 0, 1}), (Tokens{0, 1}));
  EXPECT_EQ(sample_row({-0.0, 0.0}, {kBelowOne}, {1, 1, 1}), Tokens{0});
}

TEST_F(Sampling, ARowWithoutALargestNumberHasNoToken) {
  const Values good{1, 2, 3, 4, 5};
  for (const SamplingRule& rule : {SamplingRule{0, 0, 1}, {1, 0, 1}, {1, 2, 0.5}}) {
    for (const std::size_t place : {0u, 2u, 4u})
      for (const double bad : {kNan, -kNan, kInfinity}) {
        Values rows = repeated(good, 3);
        rows[5 + place] = bad;
        Data data(DType::f32, rows);
        EXPECT_EQ(sample(data.matrix(5), {0.9, 0.9, 0.9}, rule), (Tokens{4, -1, 4}))
            << bad << " at " << place;
      }
    EXPECT_EQ(sample_row(Values(300, -kInfinity), {0.5}, rule), Tokens{-1});
  }
}

TEST_F(Sampling, MinusInfinityIsNeverChosen) {
  const Values row{-kInfinity, 1, -kInfinity, 0, -kInfinity};
  for (const SamplingRule& rule :
       {SamplingRule{1, 0, 1}, {1, 4, 1}, {1, 5, 1}, {1, 0, kBelowOne}, {1e300, 3, 0.99}}) {
    const Tokens tokens = sample_row(row, spread(9), rule);
    EXPECT_EQ(std::set<std::int32_t>(tokens.begin(), tokens.end()), (std::set<std::int32_t>{1, 3}));
  }
}

TEST_F(Sampling, ExtremeTemperaturesAndLogitsAreGreedyOrEven) {
  const std::vector<double> uniforms{0, 0.3, kBelowOne};
  for (const double temperature : {1e-320, 1e-300, 1e-5})
    EXPECT_EQ(sample_row({1, 3, 3.001, 2}, uniforms, {temperature, 0, 1}), (Tokens{2, 2, 2})) << temperature;
  EXPECT_EQ(sample_row({-FLT_MAX, FLT_MAX, 0}, uniforms, {1, 0, 1}), (Tokens{1, 1, 1}));
  EXPECT_EQ(sample_row({FLT_TRUE_MIN, 0, -FLT_TRUE_MIN}, uniforms, {1e-300, 0, 1}), (Tokens{0, 0, 0}));
  EXPECT_EQ(sample_row({-FLT_MAX, FLT_MAX, 0}, uniforms, {1e300, 0, 1}), (Tokens{0, 0, 2}));
  EXPECT_EQ(sample_row({5, -5}, uniforms, {kInfinity, 0, 1}), (Tokens{0, 0, 1}));
}

TEST_F(Sampling, ATinyTopPKeepsTheLikeliest) {
  for (const double p : {DBL_TRUE_MIN, 1e-300, 1e-6})
    EXPECT_EQ(sample_row({1, 3, 2, 3}, {0, 0.5, kBelowOne}, {1, 0, p}), (Tokens{1, 1, 1})) << p;
}

TEST_F(Sampling, FollowsTheSoftmaxOfLogitsOverTemperature) {
  const Values row{0, 2, 1, 2, -3};
  constexpr std::size_t kDraws = 1000;
  const RandomStream random(3, "sampling test");
  std::vector<double> uniforms;
  for (std::size_t i = 0; i < kDraws; ++i) uniforms.push_back(random.uniform(i));
  Data data(DType::f32, repeated(row, kDraws));
  for (const double temperature : {0.5, 3.0}) {
    double total = 0, chi_square = 0;
    for (const double logit : row) total += std::exp(logit / temperature);
    const Tokens tokens = sample(data.matrix(5), uniforms, {temperature, 0, 1});
    for (std::size_t id = 0; id < row.size(); ++id) {
      const double expected = kDraws * std::exp(row[id] / temperature) / total;
      const auto found = static_cast<double>(std::count(tokens.begin(), tokens.end(), static_cast<int>(id)));
      chi_square += (found - expected) * (found - expected) / expected;
    }
    EXPECT_LT(chi_square, 25.0) << temperature;  // of 4 degrees of freedom: once in 20 000 seeds
  }
}

TEST_F(Sampling, RowsMayStartAnywhereAndStandForThemselves) {
  constexpr Index kRows = 5;
  for (const Index cols : {3, 130, 1500}) {
    const Values rows = random_values(kRows * cols, "rows");
    const std::vector<double> uniforms{0.1, 0.9, 0.5, 0.3, 0.7};
    for (const SamplingRule& rule : {SamplingRule{0, 0, 1}, {1, 0, 1}, {1, 20, 0.9}}) {
      Tokens alone;
      for (Index t = 0; t < kRows; ++t)
        alone.push_back(sample_row(part(rows, t, cols), {uniforms[static_cast<std::size_t>(t)]}, rule)[0]);
      for (const auto& [lead, gap] : {std::pair<Index, Index>{0, (8 - cols % 8) % 8}, {1, 1}, {3, 0}}) {
        Embedded embedded(DType::f32, rows, cols, lead, gap);  // NaN lies around the rows
        EXPECT_EQ(sample(embedded.matrix(), uniforms, rule), alone) << cols << " from " << lead;
        EXPECT_EQ(embedded.values(), rows);
      }
    }
  }
}

TEST_F(Sampling, LargeVocabulariesFit) {
  // The emulator takes its time.
  const Index cols = testing::on_cpu() ? kMostLogits : 1100003;
  const Values even(static_cast<std::size_t>(cols), 0.25);
  const std::vector<double> uniforms{0.5, kBelowOne};
  const Tokens tokens = sample_row(even, uniforms, {1, 0, 1});
  EXPECT_EQ(tokens, (Tokens{static_cast<std::int32_t>(cols / 2), static_cast<std::int32_t>(cols - 1)}));
}

TEST_F(Sampling, NoRowsGiveNoTokens) {
  Data data(DType::f32, 5);
  Matrix none = data.matrix(5);
  none.rows = 0;
  EXPECT_EQ(sample(none, {}, {1, 0, 1}), Tokens{});
}

TEST_F(Sampling, RefusesWhatDoesNotFit) {
  const auto sim = make_sim_device(DeviceKind::cuda, {1});
  for (Device* device : {&testing::device(), static_cast<Device*>(sim.get())}) {
    Ops& ops = device->ops();
    Stream& stream = device->compute_stream();
    Data data(DType::f32, 12), half(DType::bf16, 12);
    const Array<double> uniforms(std::vector<double>(3, 0.5));
    Array<std::int32_t> tokens(Tokens(3, 0));
    const std::span<std::int32_t> all = tokens;
    const Matrix logits = data.matrix(4);
    EXPECT_NO_THROW(ops.sample(logits, uniforms, {1, 2, 0.5}, tokens, stream));
    EXPECT_THROW(ops.sample(half.matrix(4), uniforms, {}, tokens, stream), InternalError);
    EXPECT_THROW(ops.sample(logits, uniforms, {}, all.first(2), stream), InternalError);
    EXPECT_THROW(ops.sample(logits, uniforms.part(0, 2), {}, tokens, stream), InternalError);
    EXPECT_THROW(ops.sample({logits.data, DType::f32, 3, 0, 4}, uniforms, {}, tokens, stream), InternalError);
    EXPECT_THROW(ops.sample({logits.data, DType::f32, 3, kMostLogits + 1, kMostLogits + 1}, uniforms, {},
                            tokens, stream),
                 InternalError);
    for (const SamplingRule& rule :
         {SamplingRule{-1, 0, 1}, {kNan, 0, 1}, {1, -1, 1}, {1, 0, 0}, {1, 0, kNan}})
      EXPECT_THROW(ops.sample(logits, uniforms, rule, tokens, stream), InternalError);
    stream.synchronize();
  }
}

TEST(TokenWeight, IsTheExponentialInUnitsOf2ToTheMinus40) {
  for (const double temperature : {0.3, 1.0, 7.0}) {
    const TokenWeight weight(3.5f, temperature);
    EXPECT_EQ(weight(3.5f), std::uint64_t{1} << 40);
    for (float logit = 3.5f; logit > -60; logit -= 0.037f) {
      const double expected = std::exp((static_cast<double>(logit) - 3.5) / temperature) * 0x1p40;
      EXPECT_NEAR(static_cast<double>(weight(logit)), expected - 0.5, 1.01) << logit;
    }
    EXPECT_EQ(weight(-kInfinity), 0u);
  }
}

TEST(TokenWeight, OrderAndPartsAreExact) {
  const std::vector<float> ascending{-HUGE_VALF,   -FLT_MAX, -1.5f,   -FLT_TRUE_MIN, 0.0f,
                                     FLT_TRUE_MIN, 1,        FLT_MAX, HUGE_VALF,     NAN};
  std::uint32_t before = 0;
  for (const float number : ascending) {
    const std::uint32_t order = order_of(std::bit_cast<std::uint32_t>(number));
    EXPECT_GT(order, before) << number;
    EXPECT_EQ(is_order_of_finite(order), std::isfinite(number)) << number;
    EXPECT_TRUE(std::isnan(number) || std::bit_cast<float>(bits_in_place(order)) == number) << number;
    before = order;
  }
  EXPECT_EQ(order_of(std::bit_cast<std::uint32_t>(-0.0f)), order_of(std::bit_cast<std::uint32_t>(0.0f)));

  const std::uint64_t most = ~std::uint64_t{0};
  EXPECT_EQ(part_of(most, kBelowOne, false), most - (std::uint64_t{1} << 11));
  EXPECT_EQ(part_of(most, 0.5, false), most / 2);
  EXPECT_EQ(part_of(most, 0.5, true), most / 2 + 1);
  EXPECT_EQ(part_of(6, 0.5, true), 3u);
  EXPECT_EQ(part_of(7, 0.75, false), 5u);
  EXPECT_EQ(part_of(7, 0.75, true), 6u);
  EXPECT_EQ(part_of(most, 0, true), 0u);
  EXPECT_EQ(part_of(std::uint64_t{3} << 40, 1 / 3.0, false),
            (std::uint64_t{1} << 40) - 1);  // 1/3 rounded down
}

/// As transformers' RepetitionPenaltyLogitsProcessor words it, in fp32.
TEST_F(Sampling, TokensThatWereUsedAreDividedOrMultiplied) {
  const std::vector<float> before{2.5f, -1.25f, 0.0f, 3e-39f, -7.0f, 1e30f, 0.1f};
  for (const float penalty : {1.3f, 0.7f, 1.0f}) {
    Array<float> logits(before);
    const Array<std::int32_t> ids(Tokens{6, 1, 2, 3, 5});
    ops_.penalise_repeats({logits.data(), DType::f32, 7}, ids, penalty, stream_);
    stream_.synchronize();
    const std::vector<float> found = logits.host();
    for (std::size_t i = 0; i < before.size(); ++i) {
      const bool is_used = i != 0 && i != 4;
      const float score = before[i];
      const float expected = !is_used ? score : score < 0 ? score * penalty : score / penalty;
      EXPECT_EQ(found[i], expected) << i << ", penalty " << penalty;
    }
  }
  Array<float> logits(before);
  const Array<std::int32_t> none(Tokens{});
  ops_.penalise_repeats({logits.data(), DType::f32, 7}, none, 2.0f, stream_);
  stream_.synchronize();
  EXPECT_EQ(logits.host(), before);
}

TEST_F(Sampling, PenaltiesThatCannotBeAreRefused) {
  Array<float> logits(std::vector<float>{1, 2});
  const Array<std::int32_t> ids(Tokens{0, 1, 1});
  const Vector all{logits.data(), DType::f32, 2};
  EXPECT_THROW(ops_.penalise_repeats(all, ids, 1.5f, stream_), InternalError);
  const std::span<const std::int32_t> one = std::span<const std::int32_t>(ids).first(1);
  EXPECT_THROW(ops_.penalise_repeats(all, one, 0.0f, stream_), InternalError);
  EXPECT_THROW(ops_.penalise_repeats(all, one, std::numeric_limits<float>::quiet_NaN(), stream_),
               InternalError);
}

}  // namespace
}  // namespace cartan::device
