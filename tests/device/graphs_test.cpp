// Work that repeats on the compute stream of cuda goes out as graphs: what comes out is the same as without,
// whatever repeats, changes or comes in between.
#include <gtest/gtest.h>

#include "device/ops_fixture.hpp"

namespace cartan::device {
namespace {

using testing::Array;

class Graphs : public ::testing::Test {
 protected:
  static constexpr Index kCount = 100;

  void add(Array<float>& y, const Array<float>& x) { ops_.add(vector(y), vector(x), stream_); }
  static Vector vector(const Array<float>& x) { return {x.data(), DType::f32, kCount}; }
  static std::vector<float> filled(float value) { return std::vector<float>(kCount, value); }

  Device& device_ = testing::device();
  Ops& ops_ = device_.ops();
  Stream& stream_ = device_.compute_stream();
  Array<float> one_{filled(1)}, two_{filled(2)}, sum_{filled(0)}, other_{filled(0)};
};

TEST_F(Graphs, RepeatedWorkIsDoneEachTime) {
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < 10; ++i) add(sum_, one_);
    stream_.synchronize();
    EXPECT_EQ(sum_.host(), filled(10.0f * static_cast<float>(round + 1)));
  }
}

TEST_F(Graphs, MoreThanAGraphHolds) {
  for (int round = 0; round < 4; ++round)
    for (int i = 0; i < 150; ++i) add(sum_, one_);
  EXPECT_EQ(sum_.host(), filled(600));
}

TEST_F(Graphs, WorkThatGoesOnDifferently) {
  float expected = 0;
  for (int round = 0; round < 6; ++round) {
    for (int i = 0; i < 8; ++i) {
      const bool differs = i == round + 1;  // somewhere else each time
      add(sum_, differs ? two_ : one_);
      expected += differs ? 2.0f : 1.0f;
    }
    stream_.synchronize();
  }
  EXPECT_EQ(sum_.host(), filled(expected));
}

TEST_F(Graphs, WorkThatEndsEarlierOrLater) {
  int expected = 0;
  for (const int count : {8, 8, 5, 8, 5, 12, 12, 8, 1, 12, 0, 5}) {
    for (int i = 0; i < count; ++i) add(sum_, one_);
    stream_.synchronize();
    expected += count;
    EXPECT_EQ(sum_.host(), filled(static_cast<float>(expected)));
  }
}

TEST_F(Graphs, OtherStreamsSeeWhatCameBeforeTheEvent) {
  const auto beside = device_.make_stream("beside");
  for (int round = 1; round <= 4; ++round) {
    for (int i = 0; i < 6; ++i) add(sum_, one_);
    beside->wait(stream_.record());
    ops_.copy(as_matrix(sum_.data(), DType::f32, 1, kCount), as_matrix(other_.data(), DType::f32, 1, kCount),
              *beside);
    stream_.wait(beside->record());
    EXPECT_EQ(other_.host(), filled(6.0f * static_cast<float>(round)));
  }
}

TEST_F(Graphs, CopiesComeInTheirOrder) {
  for (int round = 1; round <= 4; ++round) {
    for (int i = 0; i < 5; ++i) add(sum_, one_);
    device_.copy(other_.data(), sum_.data(), kCount * sizeof(float), stream_);
    ops_.fill_zero(vector(sum_), stream_);
    for (int i = 0; i < 5; ++i) add(sum_, two_);
    EXPECT_EQ(other_.host(), filled(round == 1 ? 5.0f : 15.0f));
  }
}

TEST_F(Graphs, WhatALaterGradientFoldsIsNotMistaken) {
  // The same rows, slots and place, but another plan: keys say all.
  const Index rows = 4, cols = 8;
  const Array<float> dy(std::vector<float>(static_cast<std::size_t>(rows * cols), 1.0f));
  Array<float> slot(std::vector<float>(static_cast<std::size_t>(cols), 0.0f));
  float* const slots[] = {slot.data()};
  const FoldPlan first{0, 1, 1, {0}}, further{1, 1, 2, {1}};
  for (int round = 0; round < 4; ++round) {
    for (const FoldPlan* const plan : {&first, &further, &further, &further, &further})
      ops_.column_sums(as_matrix(dy.data(), DType::f32, rows, cols), {1, rows}, {slots, 0, plan}, stream_);
    EXPECT_EQ(slot.host(), std::vector<float>(static_cast<std::size_t>(cols), 20.0f));
  }
}

TEST_F(Graphs, MemoryMayBeReleasedWhileWorkIsHeldBack) {
  for (int round = 0; round < 4; ++round) {
    const Buffer buffer = device_.allocate(kCount * sizeof(float), MemoryKind::workspace, "a test");
    const Vector x{buffer.data(), DType::f32, kCount};
    ops_.fill_zero(x, stream_);
    for (int i = 0; i < 5; ++i) ops_.add(x, vector(one_), stream_);
    ops_.add(vector(sum_), x, stream_);
  }
  EXPECT_EQ(sum_.host(), filled(20));
}

}  // namespace
}  // namespace cartan::device
