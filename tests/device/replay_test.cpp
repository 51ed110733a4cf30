// When calls become graphs, and what is remembered.
#include "device/cuda/replay.hpp"

#include <gtest/gtest.h>

#include "cartan/core/error.hpp"
#include "device/ops_fixture.hpp"
#include "kernels/move.hpp"

namespace cartan::device::cuda {
namespace {

class Replays : public ::testing::Test {
 protected:
  static constexpr Index kCount = 33;

  /// Adds `x` to the sum, under a key that says so.
  void add(float x) {
    const device::testing::Array<float>& values = x == 1 ? one_ : two_;
    replay_.add({static_cast<Replay::Word>(x)}, [&] {
      ++made_;
      return [this, data = values.data()] {
        ++called_;
        kernels::add(Vector{sum_.data(), DType::f32, kCount}, ConstVector{data, DType::f32, kCount},
                     stream_.native());
      };
    });
  }
  void add_pattern(int calls, int two_at = -1) {
    for (int i = 0; i < calls; ++i) add(i == two_at ? 2.0f : 1.0f);
  }
  float sum() {
    stream_.synchronize();
    const std::vector<float> all = sum_.host();
    EXPECT_EQ(all, std::vector<float>(kCount, all.front()));
    return all.front();
  }
  static std::vector<float> filled(float value) { return std::vector<float>(kCount, value); }

  device::testing::Array<float> one_{filled(1)}, two_{filled(2)}, sum_{filled(0)};
  CudaStream stream_{"test", std::make_shared<EventPool>()};
  Replay replay_{stream_};
  int made_ = 0, called_ = 0;
};

TEST_F(Replays, TheFirstTimeCallsAreMadeTheSecondCapturedThenLaunched) {
  for (int round = 1; round <= 5; ++round) {
    add_pattern(6);
    EXPECT_EQ(sum(), 6.0f * static_cast<float>(round));
    EXPECT_EQ(made_, 6);
    EXPECT_EQ(called_, round == 1 ? 6 : 12);
    EXPECT_EQ(replay_.graphs(), round == 1 ? 0u : 1u);
  }
}

TEST_F(Replays, AFewCallsAreNotWorthAGraph) {
  for (int round = 1; round <= 4; ++round) {
    add_pattern(static_cast<int>(Replay::kLeastCalls) - 1);
    EXPECT_EQ(sum(), 3.0f * static_cast<float>(round));
  }
  EXPECT_EQ(replay_.graphs(), 0u);
  EXPECT_EQ(called_, 12);
}

TEST_F(Replays, LongWorkIsCutAndNeedsNobodyToWait) {
  const int calls = 2 * static_cast<int>(Replay::kMostCalls) + 5;
  for (int round = 1; round <= 3; ++round) {
    add_pattern(calls);
    EXPECT_EQ(sum(), static_cast<float>(calls * round));
  }
  // The same 64 calls twice, and five more.
  EXPECT_EQ(replay_.graphs(), 2u);
}

TEST_F(Replays, WorkOfSeveralKindsHasAGraphOfEach) {
  float expected = 0;
  for (int round = 0; round < 3; ++round)
    for (const int two_at : {-1, 5, 3, 7}) {
      add_pattern(8, two_at);
      expected += two_at < 0 ? 8.0f : 9.0f;
      EXPECT_EQ(sum(), expected);
    }
  EXPECT_EQ(replay_.graphs(), 4u);
}

TEST_F(Replays, ABeginningIsWorkOfItsOwn) {
  float expected = 0;
  for (int round = 0; round < 4; ++round)
    for (const int calls : {8, 5}) {
      add_pattern(calls);
      expected += static_cast<float>(calls);
      EXPECT_EQ(sum(), expected);
    }
  EXPECT_EQ(replay_.graphs(), 2u);
}

TEST_F(Replays, ACallThatIsRefusedWasNeverMade) {
  const auto refuse = [&] { replay_.add({50}, [] { return [] { throw InternalError("refused"); }; }); };
  for (int round = 1; round <= 3; ++round) {
    EXPECT_THROW(refuse(), InternalError);
    add_pattern(5);
    EXPECT_THROW(refuse(), InternalError);
    EXPECT_EQ(sum(), 5.0f * static_cast<float>(round));
    replay_.flush();
  }
}

TEST_F(Replays, WhatNeverComesAgainIsForgotten) {
  Replay::Word key = 100;
  for (int round = 0; round < 20000; ++round) {
    for (int i = 0; i < 4; ++i)
      replay_.add({key + static_cast<Replay::Word>(round % 3000 * i)}, [] { return [] {}; });
    replay_.flush();
    if (round % 3000 == 2999) key += 1000000;
  }
  EXPECT_LE(replay_.held(), Replay::kMostHeld);
  add_pattern(6);
  add_pattern(6);
  EXPECT_EQ(sum(), 12.0f);
}

TEST_F(Replays, FirstCallsAreForgottenWithWhatFollowedThem) {
  for (Replay::Word key = 100; key < 100 + 2 * Replay::kMostHeld; ++key) {
    replay_.add({key}, [] { return [] {}; });
    replay_.flush();
  }
  EXPECT_LE(replay_.beginnings(), replay_.held());
  EXPECT_LE(replay_.held(), Replay::kMostHeld);
}

TEST_F(Replays, WhatCannotBeCapturedGoesOnWithoutGraphs) {
  int calls = 0;
  const auto round = [&] {
    add_pattern(4);
    replay_.add({77}, [&] {
      return [&] {
        if (++calls == 2) throw EnvironmentError("a library cannot be captured");
      };
    });
    replay_.flush();
  };
  for (int i = 1; i <= 3; ++i) {
    if (i == 2) ::testing::internal::CaptureStderr();
    round();
    if (i == 2) {
      const std::string said = ::testing::internal::GetCapturedStderr();
      EXPECT_NE(said.find("no CUDA graphs in this run: a library cannot be captured"), std::string::npos)
          << said;
    }
    EXPECT_EQ(sum(), 4.0f * static_cast<float>(i));
  }
  EXPECT_EQ(replay_.graphs(), 0u);
}

}  // namespace
}  // namespace cartan::device::cuda
