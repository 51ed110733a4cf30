#include "cartan/infer/sampling.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>

namespace cartan::infer {
namespace {

const RandomStream kRandom(3, "sampling test");
const std::array<float, 5> kLogits{0.0f, 2.0f, 1.0f, 2.0f, -3.0f};

std::map<std::int32_t, double> frequencies(const SamplingOptions& options, int draws) {
  std::map<std::int32_t, double> shares;
  for (int i = 0; i < draws; ++i)
    shares[sample(kLogits, options, kRandom, static_cast<std::uint64_t>(i))] += 1.0 / draws;
  return shares;
}

TEST(Sampling, ZeroTemperatureTakesTheFirstOfTheLargest) { EXPECT_EQ(sample(kLogits, {}, kRandom, 0), 1); }

TEST(Sampling, FollowsTheSoftmaxOfLogitsOverTemperature) {
  for (const double temperature : {0.5, 1.0, 3.0}) {
    double total = 0;
    for (const float logit : kLogits) total += std::exp(logit / temperature);
    const auto shares = frequencies({temperature, 0, 1.0}, 20000);
    for (std::size_t i = 0; i < kLogits.size(); ++i) {
      const double expected = std::exp(kLogits[i] / temperature) / total;
      const auto found = shares.find(static_cast<std::int32_t>(i));
      EXPECT_NEAR(found == shares.end() ? 0.0 : found->second, expected,
                  5 * std::sqrt(expected / 20000) + 1e-4);
    }
  }
}

TEST(Sampling, TopKAndTopPDropTheUnlikely) {
  EXPECT_EQ(frequencies({1.0, 2, 1.0}, 500).size(), 2u);
  EXPECT_EQ(frequencies({1.0, 1, 1.0}, 500).size(), 1u);
  EXPECT_EQ(frequencies({1.0, 0, 0.5}, 500).size(), 2u);   // the two largest have 0.41 each
  EXPECT_EQ(frequencies({1.0, 0, 0.01}, 500).size(), 1u);  // at least one stays
}

}  // namespace
}  // namespace cartan::infer
