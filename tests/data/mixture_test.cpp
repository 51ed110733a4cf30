// Shares of weighted corpora after every single sample.
#include "cartan/data/mixture.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>

#include "cartan/core/random.hpp"

namespace cartan::data {
namespace {

using Weights = std::vector<std::uint64_t>;

/// Checks that numbers within each corpus count up, and returns the largest distance from the exact share.
double largest_error(const Weights& weights, Index samples) {
  const Mixture mixture(weights);
  const auto sum = static_cast<double>(std::accumulate(weights.begin(), weights.end(), std::uint64_t{0}));
  std::vector<Index> counts(weights.size());
  double largest = 0;
  for (Index i = 0; i < samples; ++i) {
    const auto [corpus, number] = mixture(i);
    EXPECT_EQ(number, counts[static_cast<std::size_t>(corpus)]++);
    for (std::size_t c = 0; c < weights.size(); ++c) {
      const double share = static_cast<double>(i + 1) * static_cast<double>(weights[c]) / sum;
      largest = std::max(largest, std::abs(static_cast<double>(counts[c]) - share));
    }
  }
  return largest;
}

TEST(Mixture, OneCorpusGetsEverything) {
  const Mixture mixture(Weights{5});
  for (Index i : {Index{0}, Index{1}, Index{1} << 60}) EXPECT_EQ(mixture(i), (Mixture::Choice{0, i}));
}

TEST(Mixture, TwoEqualCorporaAlternate) {
  const Mixture mixture(Weights{1, 1});
  for (Index i = 0; i < 10; i += 2) {
    EXPECT_NE(mixture(i).corpus, mixture(i + 1).corpus);
    EXPECT_EQ(mixture(i).number, i / 2);
    EXPECT_EQ(mixture(i + 1).number, i / 2);
  }
}

TEST(Mixture, SharesAreExactWithinOneForUpToThreeCorpora) {
  for (const Weights& weights : {Weights{700000000, 300000000}, Weights{1, 999}, Weights{2, 3, 7},
                                 Weights{1, 1, 1}, Weights{500, 499, 1}, Weights{1, 1000000000000, 31}})
    EXPECT_LE(largest_error(weights, 3000), 1.0);
}

TEST(Mixture, SharesAreWithinTheProvenBoundForAnyNumber) {
  EXPECT_LT(largest_error({1, 1, 1, 1, 1, 1, 1}, 2000), 1.7);
  EXPECT_LT(largest_error({1, 1, 2, 3, 5, 8, 13, 21, 34, 55}, 2000), 1.7);
  const RandomStream random(3, "mixture");
  for (std::uint64_t trial = 0; trial < 10; ++trial) {
    Weights weights;
    for (std::uint64_t c = 0; c < 2 + trial; ++c) weights.push_back(1 + random.bits(100 * trial + c) % 1000);
    EXPECT_LT(largest_error(weights, 1500), 1.7);
  }
}

TEST(Mixture, AfterAsManySamplesAsTheSumEachCorpusHasItsWeight) {
  const Weights weights{5, 11, 1, 3, 7};
  const Mixture mixture(weights);
  std::map<Index, std::uint64_t> counts;
  for (Index i = 0; i < 27; ++i) ++counts[mixture(i).corpus];
  for (std::size_t c = 0; c < weights.size(); ++c) EXPECT_EQ(counts[static_cast<Index>(c)], weights[c]);
}

TEST(Mixture, IsExactForHugeNumbers) {
  // floor would lose the parity in double precision: 2^61 samples, weights 1 : 1.
  const Mixture mixture(Weights{std::uint64_t{1} << 60, std::uint64_t{1} << 60});
  const Index i = (Index{1} << 61) + 1;
  EXPECT_EQ(mixture(i).number, i / 2);
  EXPECT_NE(mixture(i).corpus, mixture(i - 1).corpus);
}

}  // namespace
}  // namespace cartan::data
