#include "cartan/core/random.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace cartan {
namespace {

// The known answers that the authors of Philox publish for ten rounds of Philox4x32.
TEST(Philox, GivesThePublishedAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomStream, AnyPartOfTheNormalsIsTheSameWhereverItStarts) {
  const RandomStream random(5, "layer");
  std::vector<float> whole(101);
  random.fill_normal(0, 1.0, 2.0, whole);
  for (const std::size_t first : {1u, 2u, 33u, 100u}) {
    std::vector<float> part(whole.size() - first);
    random.fill_normal(first, 1.0, 2.0, part);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<std::ptrdiff_t>(first)));
  }
}

TEST(RandomStream, NormalsHaveTheirMeanAndDeviation) {
  std::vector<float> values(200000);
  RandomStream(1, std::uint64_t{2}).fill_normal(0, 0.5, 0.02, values);
  double mean = 0, square = 0;
  for (const float v : values) mean += v;
  mean /= static_cast<double>(values.size());
  for (const float v : values) square += (v - mean) * (v - mean);
  // Five standard errors: 5 * 0.02 / sqrt(200000), and the same share of the deviation over sqrt(2).
  EXPECT_NEAR(mean, 0.5, 5 * 0.02 / std::sqrt(2e5));
  EXPECT_NEAR(std::sqrt(square / static_cast<double>(values.size())), 0.02, 5 * 0.02 / std::sqrt(4e5));
}

TEST(RandomStream, DiffersBetweenSeedsAndNames) {
  EXPECT_NE(RandomStream(1, "a").bits(0), RandomStream(2, "a").bits(0));
  EXPECT_NE(RandomStream(1, "a").bits(0), RandomStream(1, "b").bits(0));
  EXPECT_NE(RandomStream(1, "a").bits(0), RandomStream(1, "a").bits(1));
}

TEST(Permutation, VisitsEveryIndexOnce) {
  for (const std::uint64_t size : {1u, 2u, 3u, 5u, 16u, 17u, 1000u, 4097u}) {
    const Permutation permutation(size, 11, 3);
    std::set<std::uint64_t> seen;
    for (std::uint64_t i = 0; i < size; ++i) seen.insert(permutation(i));
    EXPECT_EQ(seen.size(), size);
    EXPECT_LT(*seen.rbegin(), size);
  }
}

TEST(Permutation, LeavesFewIndicesInPlace) {
  const Permutation permutation(10000, 1, 0), other(10000, 1, 1);
  int fixed = 0, equal = 0;
  for (std::uint64_t i = 0; i < 10000; ++i) {
    fixed += permutation(i) == i ? 1 : 0;
    equal += permutation(i) == other(i) ? 1 : 0;
  }
  EXPECT_LT(fixed, 12);  // one is expected; Poisson
  EXPECT_LT(equal, 12);
}

}  // namespace
}  // namespace cartan
