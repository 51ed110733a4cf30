#include "cartan/core/text.hpp"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "cartan/core/bfloat16.hpp"

namespace cartan {
namespace {

TEST(Text, FormatsSizesAndDurations) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(std::uint64_t{5} << 30), "5.00 GiB");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1240000), "1.24 M");
  EXPECT_EQ(format_duration(3.4), "3 s");
  EXPECT_EQ(format_duration(725), "12 min 05 s");
  EXPECT_EQ(format_duration(7620), "2 h 07 min");
}

TEST(Text, FindsTheNearestName) {
  const std::array<std::string, 3> names{"model.hidden", "model.heads", "data.train"};
  EXPECT_EQ(nearest("model.hiden", names), "model.hidden");
  EXPECT_EQ(nearest("model.head", names), "model.heads");
  EXPECT_FALSE(nearest("something.else.entirely", names).has_value());
}

TEST(Text, SplitsAndTrims) {
  EXPECT_EQ(split("a,,b", ','), (std::vector<std::string>{"a", "", "b"}));
  EXPECT_EQ(split("", ','), std::vector<std::string>{""});
  EXPECT_EQ(trim(" \t x y\r\n"), "x y");
  EXPECT_EQ(trim(" \n"), "");
}

TEST(BFloat16, RoundsToNearestTiesToEven) {
  EXPECT_EQ(to_bfloat16(1.0f).bits, 0x3f80);
  EXPECT_EQ(to_bfloat16(std::bit_cast<float>(0x3f808000u)).bits, 0x3f80);  // halfway, even stays
  EXPECT_EQ(to_bfloat16(std::bit_cast<float>(0x3f818000u)).bits, 0x3f82);  // halfway, odd goes up
  EXPECT_EQ(to_bfloat16(std::bit_cast<float>(0x3f808001u)).bits, 0x3f81);
  EXPECT_TRUE(std::isinf(to_float(to_bfloat16(std::numeric_limits<float>::max()))));
  EXPECT_TRUE(std::isnan(to_float(to_bfloat16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isnan(to_float(to_bfloat16(std::bit_cast<float>(0x7f800001u)))));
}

TEST(Text, ListsOfNumbersAndRangesAreReadOrRefused) {
  const auto read = [](const char* text) { return parse_ranges(text, 5); };
  using Bits = std::vector<bool>;
  EXPECT_EQ(read("0-4"), Bits(5, true));
  EXPECT_EQ(read("3"), (Bits{false, false, false, true, false}));
  EXPECT_EQ(read("0, 2-3,3"), (Bits{true, false, true, true, false}));
  for (const char* bad :
       {"", "5", "0-5", "3-1", "-1", "1-", "-", "a", "1,,2", "1-2-3", "0x1", "99999999999999999999"})
    EXPECT_EQ(read(bad), std::nullopt) << bad;
}

}  // namespace
}  // namespace cartan
