// Every code of both formats, and every float that lies between two of them, at it or next to the middle.
#include "cartan/core/float8.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace cartan {
namespace {

/// The value of a code without sign, as the paper's table 1 defines it.
double value_of(int code, int fraction_bits, int bias) {
  const int exponent = code >> fraction_bits, fraction = code & ((1 << fraction_bits) - 1);
  if (exponent == 0) return std::ldexp(fraction, 1 - bias - fraction_bits);
  return std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
}

template <class Code>
struct Format;
template <>
struct Format<Float8E4M3> {
  static constexpr int kFraction = 3, kBias = 7;
};
template <>
struct Format<Float8E5M2> {
  static constexpr int kFraction = 2, kBias = 15;
};

template <class Code>
class Float8Test : public ::testing::Test {
 protected:
  static double value(int code) { return value_of(code, Format<Code>::kFraction, Format<Code>::kBias); }
  static int rounded(float x) { return Code::from(x).bits; }
};
using Formats = ::testing::Types<Float8E4M3, Float8E5M2>;
TYPED_TEST_SUITE(Float8Test, Formats);

TYPED_TEST(Float8Test, HasTheValueOfItsBits) {
  for (int code = 0; code <= TypeParam::kLargestCode; ++code) {
    const auto bits = static_cast<std::uint8_t>(code);
    const float plus = to_float(TypeParam{bits});
    const float minus = to_float(TypeParam{static_cast<std::uint8_t>(bits | 0x80)});
    EXPECT_EQ(static_cast<double>(plus), this->value(code)) << code;
    EXPECT_EQ(minus, -plus) << code;
    EXPECT_TRUE(std::signbit(minus)) << code;
  }
  EXPECT_TRUE(std::isnan(to_float(TypeParam{0x7f})));
  EXPECT_TRUE(std::isnan(to_float(TypeParam{0xff})));
}

TEST(Float8, HasTheExtremesOfThePaper) {
  EXPECT_EQ(to_float(Float8E4M3{0x7e}), 448.0f);
  EXPECT_EQ(to_float(Float8E4M3{0x08}), 0x1p-6f);
  EXPECT_EQ(to_float(Float8E4M3{0x01}), 0x1p-9f);
  EXPECT_EQ(to_float(Float8E5M2{0x7b}), 57344.0f);
  EXPECT_EQ(to_float(Float8E5M2{0x04}), 0x1p-14f);
  EXPECT_EQ(to_float(Float8E5M2{0x01}), 0x1p-16f);
  EXPECT_EQ(to_float(Float8E5M2{0x7c}), HUGE_VALF);
  EXPECT_EQ(to_float(Float8E5M2{0xfc}), -HUGE_VALF);
  EXPECT_TRUE(std::isnan(to_float(Float8E5M2{0x7d})));
}

TYPED_TEST(Float8Test, RoundsToNearestTiesToEven) {
  for (int code = 0; code < TypeParam::kLargestCode; ++code) {
    const auto low = static_cast<float>(this->value(code)), high = static_cast<float>(this->value(code + 1));
    const float middle = (low + high) / 2;  // exact
    const int even = code + code % 2;
    for (const int sign : {0, 0x80}) {
      const float factor = sign == 0 ? 1.0f : -1.0f;
      EXPECT_EQ(this->rounded(factor * low), sign | code);
      EXPECT_EQ(this->rounded(factor * std::nextafter(low, high)), sign | code) << code;
      EXPECT_EQ(this->rounded(factor * std::nextafter(middle, low)), sign | code) << code;
      EXPECT_EQ(this->rounded(factor * middle), sign | even) << code;
      EXPECT_EQ(this->rounded(factor * std::nextafter(middle, high)), sign | (code + 1)) << code;
      EXPECT_EQ(this->rounded(factor * std::nextafter(high, low)), sign | (code + 1)) << code;
    }
  }
}

TYPED_TEST(Float8Test, MakesWhatIsTooLargeTheLargestAndKeepsNan) {
  const auto largest = static_cast<float>(this->value(TypeParam::kLargestCode));
  for (const float x : {largest, std::nextafter(largest, HUGE_VALF), 1.0624f * largest, 1.5f * largest,
                        std::numeric_limits<float>::max(), HUGE_VALF}) {
    EXPECT_EQ(this->rounded(x), TypeParam::kLargestCode) << x;
    EXPECT_EQ(this->rounded(-x), 0x80 | TypeParam::kLargestCode) << x;
  }
  for (const float nan : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN()})
    EXPECT_TRUE(std::isnan(to_float(TypeParam::from(nan))));
}

TYPED_TEST(Float8Test, MakesWhatIsTooSmallZeroWithItsSign) {
  const auto smallest = static_cast<float>(this->value(1));
  for (const float x : {smallest / 2, smallest / 1000, std::numeric_limits<float>::denorm_min(), 0.0f}) {
    EXPECT_EQ(this->rounded(x), 0) << x;
    EXPECT_EQ(this->rounded(-x), 0x80) << x;
  }
  EXPECT_EQ(this->rounded(std::nextafter(smallest / 2, 1.0f)), 1);
}

}  // namespace
}  // namespace cartan
