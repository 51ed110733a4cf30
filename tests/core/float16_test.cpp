// Every half, and every float that lies between two of them, at it or next to the middle: what rounding means
// without a second implementation of it.
#include "cartan/core/float16.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace cartan {
namespace {

constexpr int kInfinity = 0x7c00, kSign = 0x8000;

Float16 half(int bits) { return {static_cast<std::uint16_t>(bits)}; }

TEST(Float16, HasTheValueOfItsBits) {
  for (int bits = 0; bits < kInfinity; ++bits) {
    const int exponent = bits >> 10, fraction = bits & 0x3ff;
    const double expected =
        exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    EXPECT_EQ(static_cast<double>(to_float(half(bits))), expected) << bits;
    EXPECT_EQ(static_cast<double>(to_float(half(kSign | bits))), -expected) << bits;
    EXPECT_TRUE(std::signbit(to_float(half(kSign | bits)))) << bits;
  }
  EXPECT_EQ(to_float(half(kInfinity)), HUGE_VALF);
  EXPECT_EQ(to_float(half(kSign | kInfinity)), -HUGE_VALF);
}

TEST(Float16, ComesBackFromFloat) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const bool is_nan = (bits & 0x7fff) > kInfinity;
    const int expected = is_nan ? bits | 0x200 : bits;  // made quiet, its payload kept
    EXPECT_EQ(to_float16(to_float(half(bits))).bits, expected) << bits;
    EXPECT_EQ(std::isnan(to_float(half(bits))), is_nan) << bits;
  }
}

TEST(Float16, RoundsToNearestTiesToEven) {
  for (int bits = 0; bits < kInfinity; ++bits) {
    // The neighbour of the largest number would be 2^16: what rounds to it is infinity.
    const double low = static_cast<double>(to_float(half(bits)));
    const double high = bits + 1 == kInfinity ? 0x1p16 : static_cast<double>(to_float(half(bits + 1)));
    const auto middle = static_cast<float>((low + high) / 2);
    ASSERT_EQ(static_cast<double>(middle), (low + high) / 2);
    const int even = bits % 2 == 0 ? bits : bits + 1;
    for (const int sign : {0, kSign}) {
      const auto rounded = [sign](float value) { return to_float16(sign != 0 ? -value : value).bits; };
      EXPECT_EQ(rounded(middle), sign | even) << bits;
      EXPECT_EQ(rounded(std::nextafter(middle, 0.0f)), sign | bits) << bits;
      EXPECT_EQ(rounded(std::nextafter(middle, HUGE_VALF)), sign | (bits + 1)) << bits;
    }
  }
}

TEST(Float16, BecomesInfinityZeroOrNaNOutsideOfItsRange) {
  EXPECT_EQ(to_float16(65519.996f).bits, 0x7bff);
  EXPECT_EQ(to_float16(65520.0f).bits, kInfinity);
  EXPECT_EQ(to_float16(std::numeric_limits<float>::max()).bits, kInfinity);
  EXPECT_EQ(to_float16(-HUGE_VALF).bits, kSign | kInfinity);
  EXPECT_EQ(to_float16(std::numeric_limits<float>::denorm_min()).bits, 0);
  EXPECT_EQ(to_float16(-std::numeric_limits<float>::min()).bits, kSign);
  // A NaN whose upper bits alone would be infinity.
  EXPECT_TRUE(std::isnan(to_float(to_float16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(to_float(to_float16(std::bit_cast<float>(0xffffffffu)))));
}

}  // namespace
}  // namespace cartan
