#include "cartan/core/json.hpp"

#include <gtest/gtest.h>

namespace cartan {
namespace {

TEST(Json, IntegersAreReadWhereAllAreWholeAndFit) {
  EXPECT_EQ(integers_of(Json::parse("[0, -5, 2147483647, -2147483648]")),
            (std::vector<std::int32_t>{0, -5, 2147483647, -2147483647 - 1}));
  EXPECT_EQ(integers_of(Json::parse("[]")), std::vector<std::int32_t>());
  for (const char* const text :
       {"[1.0]", "[1e300]", "[2147483648]", "[-2147483649]", "[18446744073709551615]", "[true]", "[\"1\"]",
        "[null]", "[[1]]", "{}", "1", "null"})
    EXPECT_EQ(integers_of(Json::parse(text)), std::nullopt) << text;
}

}  // namespace
}  // namespace cartan
