// What CUDA C++ has beyond C++, on the host.
#include "emu/language.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "emu/emu_fixture.hpp"

namespace emu::testing {
namespace {

/// In every order of threads.
class Language : public Emulated, public ::testing::WithParamInterface<Policy> {
 protected:
  Language() { policy = GetParam(); }
  ~Language() override { policy = before_; }

 private:
  Policy before_ = policy;
};

std::string name_of(const ::testing::TestParamInfo<Policy>& instance) {
  const char* const names[] = {"Forward", "Reverse", "Shuffled"};
  return names[static_cast<int>(instance.param.order)] + std::to_string(instance.param.seed);
}
INSTANTIATE_TEST_SUITE_P(Orders, Language,
                         ::testing::Values(Policy{Order::forward, 1}, Policy{Order::reverse, 1},
                                           Policy{Order::shuffled, 1}, Policy{Order::shuffled, 9}),
                         name_of);

template <class T>
std::vector<T> expected_shuffles() {
  std::vector<T> expected;
  for (int lane = 0; lane < 32; ++lane) {
    const int from[kShuffles] = {5, (lane + 1) % 32, lane / 8 * 8 + 3, lane < 2 ? lane : lane - 2,
                                 lane % 16 + 3 < 16 ? lane + 3 : lane, lane ^ 16,
                                 // The other segment lies before the lane's or behind it.
                                 lane / 8 % 2 == 1 ? lane - 8 : lane, lane % 4 == 0 ? lane : lane - 1};
    for (const int source : from) expected.push_back(static_cast<T>(10 * source));
  }
  return expected;
}

template <class T>
std::vector<T> found(std::size_t count, void (*run)(T*)) {
  DeviceArray<T> out(std::vector<T>(count, T{}));
  run(out.data());
  return out.host();
}

TEST_P(Language, ShufflesReadOtherLanes) {
  constexpr std::size_t kCount = 32 * kShuffles;
  EXPECT_EQ(found(kCount, shuffles), expected_shuffles<float>());
  EXPECT_EQ(found(kCount, double_shuffles), expected_shuffles<double>());
  EXPECT_EQ(found(kCount, wide_shuffles), expected_shuffles<std::uint64_t>());
  EXPECT_EQ(found(kCount, bf16_shuffles), expected_shuffles<float>());
}

TEST_P(Language, VotesCountTheLanesOfTheMask) {
  EXPECT_EQ(found(kVotes, votes), (std::vector<unsigned>{0xaaaaaaaau, 0xaaaau, 0, 1, 1, 0}));
}

TEST_P(Language, BarriersCombinePredicates) {
  const std::vector<int> results = found(100 * kBarrierResults, barriers);
  for (std::size_t i = 0; i < results.size(); i += kBarrierResults)
    EXPECT_EQ(std::vector<int>(&results[i], &results[i] + kBarrierResults), (std::vector<int>{1, 0, 0, 34}));
}

TEST_P(Language, AtomicsOfAllBlocksAddUp) {
  AtomicResults start{};
  start.common_bits = -1;
  DeviceArray<AtomicResults> results(std::vector<AtomicResults>{start});
  atomics(results.data());
  const AtomicResults r = results.host()[0];
  EXPECT_EQ(r.sum, 255 * 256 / 2);
  EXPECT_EQ(r.difference, -256);
  EXPECT_EQ(r.largest, 255);
  EXPECT_EQ(r.smallest, -255);
  EXPECT_EQ(r.all_bits, (1 << 20) - 1);
  EXPECT_EQ(r.common_bits, ~15);
  EXPECT_EQ(r.odd_bits, 0);
  EXPECT_EQ(r.exchanged, 7);
  EXPECT_GE(r.first, 1);
  EXPECT_LE(r.first, 256);
  EXPECT_EQ(r.unsigned_sum, 768u);
  EXPECT_EQ(r.wide_sum, 256ull << 32);
  EXPECT_EQ(r.wide_largest, 255ull << 40);
  EXPECT_EQ(r.float_sum, 128.0f);
  EXPECT_EQ(r.double_sum, 64.0);
}

TEST_P(Language, IndicesCoverBlocksOfThreeDimensions) {
  EXPECT_EQ(found(8 * 30, count_indices), std::vector<int>(8 * 30, 1));
}

TEST_P(Language, ParametersAreCopiedAtTheLaunch) {
  use(Schedule::lazy);
  DeviceArray<int> out(std::vector<int>(1000, 1));
  LargeParameter parameter{};
  std::iota(std::begin(parameter.values), std::end(parameter.values), 0);
  add_parameters(out.data(), parameter);
  parameter = {};
  const std::vector<int> values = out.host();
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(values[static_cast<std::size_t>(i)], 1 + i);
}

TEST_P(Language, MatrixProductsHaveTheDocumentedLayout) {
  std::vector<float> a(16 * 16), b(16 * 8);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i * 7 % 13) - 6;
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i * 5 % 11) - 5;
  std::vector<float> expected(16 * 8, 1.0f);
  for (std::size_t row = 0; row < 16; ++row)
    for (std::size_t col = 0; col < 8; ++col)
      for (std::size_t k = 0; k < 16; ++k) expected[row * 8 + col] += a[row * 16 + k] * b[k * 8 + col];
  DeviceArray<float> left(a), right(b);
  for (const bool as_bf16 : {true, false}) {
    DeviceArray<float> out(16 * 8);
    multiply_tiles(out.data(), left.data(), right.data(), as_bf16);
    EXPECT_EQ(out.host(), expected);
  }
}

TEST_P(Language, LoadsOfMatricesHaveTheDocumentedLayout) {
  DeviceArray<unsigned> out(128), transposed(128);
  load_tiles(out.data(), transposed.data());
  const std::vector<unsigned> plain = out.host(), turned = transposed.host();
  for (unsigned lane = 0; lane < 32; ++lane) {
    const unsigned g = lane / 4, t = lane % 4;
    for (unsigned matrix = 0; matrix < 4; ++matrix) {
      const auto element = [&](unsigned row, unsigned col) { return 64 * matrix + 8 * row + col; };
      EXPECT_EQ(plain[4 * lane + matrix], element(g, 2 * t) | element(g, 2 * t + 1) << 16);
      EXPECT_EQ(turned[4 * lane + matrix], element(2 * t, g) | element(2 * t + 1, g) << 16);
    }
  }
}

TEST_P(Language, SharedMemoryAndTargetsOfCopiesReadAsNaNTooEarly) {
  config.race = false;
  DeviceArray<float> in(std::vector<float>(4, 1.0f)), out(128);
  read_too_early(out.data(), in.data());
  for (const float value : out.host()) EXPECT_TRUE(std::isnan(value));
}

using Numbers = Emulated;

TEST_F(Numbers, AreComputedAsOnAGpu) {
  const std::vector<double> expected = {0.125, 1,  0,    4, 0.5, 0.5625,      0.75, -0.75, 4,   64,  24, 5,
                                        0,     63, 0.75, 3, 3,   0.75 + 1e-9, 2.5,  3,     1.0, 1.0, 1,  2};
  EXPECT_EQ(found(kNumberResults, number_functions), expected);
}

std::vector<int> executed_in(Policy order) {
  policy = order;
  DeviceArray<ExecutionOrder> out(std::vector<ExecutionOrder>(1));
  append_numbers(out.data());
  const ExecutionOrder result = out.host()[0];
  EXPECT_EQ(result.count, kOrderBlocks * kOrderThreads);
  return {std::begin(result.numbers), std::end(result.numbers)};
}

TEST_F(Numbers, OfThreadsComeInTheChosenOrder) {
  const Policy before = policy;
  std::vector<int> forward(kOrderBlocks * kOrderThreads);
  std::iota(forward.begin(), forward.end(), 0);
  const std::vector<int> reverse(forward.rbegin(), forward.rend());
  EXPECT_EQ(executed_in({Order::forward, 1}), forward);
  EXPECT_EQ(executed_in({Order::reverse, 1}), reverse);
  const std::vector<int> one = executed_in({Order::shuffled, 1}), two = executed_in({Order::shuffled, 2});
  EXPECT_EQ(executed_in({Order::shuffled, 1}), one);
  EXPECT_NE(one, two);
  EXPECT_NE(one, forward);
  EXPECT_EQ(std::set<int>(one.begin(), one.end()), std::set<int>(forward.begin(), forward.end()));
  policy = before;
}

}  // namespace
}  // namespace emu::testing
