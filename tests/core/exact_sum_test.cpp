#include "cartan/core/exact_sum.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace cartan {
namespace {

double sum_of(const std::vector<double>& values) {
  ExactSum sum;
  for (const double x : values) sum.add(x);
  return sum.value();
}

TEST(ExactSum, IsZeroAtFirst) { EXPECT_EQ(ExactSum().value(), 0.0); }

TEST(ExactSum, OfOneNumberIsTheNumber) {
  using Limits = std::numeric_limits<double>;
  for (const double x : {1.0, -1.0, 0.1, 1e300, -1e-300, Limits::max(), Limits::min(), -Limits::max(),
                         Limits::denorm_min(), -7 * Limits::denorm_min(), 0x1.fffffffffffffp-1022})
    EXPECT_EQ(sum_of({x}), x);
}

TEST(ExactSum, LosesNothingToCancellation) {
  EXPECT_EQ(sum_of({1e300, 1.0, -1e300}), 1.0);
  EXPECT_EQ(sum_of({1.0, 0x1p-1074, -1.0}), 0x1p-1074);
  EXPECT_EQ(sum_of({0x1p1000, -0x1p-1000, -0x1p1000}), -0x1p-1000);
}

TEST(ExactSum, RoundsToNearestEven) {
  EXPECT_EQ(sum_of({1.0, 0x1p-53}), 1.0);
  EXPECT_EQ(sum_of({1.0, 0x1p-53, 0x1p-300}), 1.0 + 0x1p-52);
  EXPECT_EQ(sum_of({1.0 + 0x1p-52, 0x1p-53}), 1.0 + 0x1p-51);
  EXPECT_EQ(sum_of({-1.0, -0x1p-53, -0x1p-300}), -1.0 - 0x1p-52);
}

TEST(ExactSum, DoesNotDependOnOrderOrGrouping) {
  std::mt19937_64 random(7);
  std::vector<double> values;
  for (int i = 0; i < 1000; ++i)
    values.push_back(std::ldexp(std::uniform_real_distribution<double>(-1, 1)(random),
                                static_cast<int>(random() % 400) - 200));
  const double expected = sum_of(values);
  for (int round = 0; round < 5; ++round) {
    std::shuffle(values.begin(), values.end(), random);
    EXPECT_EQ(sum_of(values), expected);
    ExactSum left, right;
    for (std::size_t i = 0; i < values.size(); ++i) (i % 3 == 0 ? left : right).add(values[i]);
    ExactSum together = left;
    together += right;
    EXPECT_EQ(together.value(), expected);
    const auto a = left.words(), b = right.words();
    for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
    EXPECT_EQ(left.value(), expected);
  }
}

TEST(ExactSum, MatchesLongDoubleWhereThatIsExact) {
  long double expected = 0;
  ExactSum sum;
  for (int i = 1; i <= 100000; ++i) {
    sum.add(i % 2 == 0 ? i : -i - 0.5);
    expected += i % 2 == 0 ? i : -i - 0.5L;
  }
  EXPECT_EQ(sum.value(), static_cast<double>(expected));
}

TEST(ExactSum, KeepsWhatIsNotFinite) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(sum_of({1.0, kInfinity}), kInfinity);
  EXPECT_EQ(sum_of({-kInfinity, 5.0}), -kInfinity);
  EXPECT_TRUE(std::isnan(sum_of({kInfinity, -kInfinity})));
  EXPECT_TRUE(std::isnan(sum_of({std::nan(""), 1.0})));
}

}  // namespace
}  // namespace cartan
