// Every schedule that the generators can make is proved right, and every way to damage one is noticed.
#include <gmock/gmock.h>

#include <algorithm>
#include <utility>

#include "cartan/pipeline/schedule.hpp"

namespace cartan::pipeline {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kMostStages = 32;
constexpr Index kMostMicroBatches = 64;

/// What validate() says; empty if it is content.
std::string complaint(const Schedule& schedule, Index memory_bound = 0) {
  try {
    validate(schedule, memory_bound);
  } catch (const InternalError& error) {
    return error.what();
  }
  return {};
}

template <class Damage>
Schedule damaged(Schedule schedule, std::size_t stage, Damage&& damage) {
  damage(schedule.stages.at(stage));
  return schedule;
}

std::size_t position_of(const Schedule& schedule, std::size_t stage, ActionKind kind, Index micro_batch,
                        int chunk = 0) {
  const auto& actions = schedule.stages.at(stage);
  const auto found = std::find_if(actions.begin(), actions.end(), [&](const Action& action) {
    return action.kind == kind && action.micro_batch == micro_batch && action.chunk == chunk;
  });
  return static_cast<std::size_t>(found - actions.begin());
}

/// All schedules of a kind: none waits for ever, none keeps more than `bound(stages, micro_batches)`; where
/// that is 0 there is no schedule.
template <class Bound>
void expect_all_valid(std::string_view kind, int chunks, Bound&& bound) {
  int valid = 0;
  for (int stages = chunks > 1 ? 2 : 1; stages <= kMostStages; ++stages) {
    for (Index m = 1; m <= kMostMicroBatches; ++m) {
      const Index most = bound(stages, m);
      if (most == 0) {
        ASSERT_THROW(make_schedule(kind, stages, m, chunks), ConfigError) << stages << " " << m;
      } else {
        ASSERT_EQ(complaint(make_schedule(kind, stages, m, chunks), most), "") << stages << " " << m;
        ++valid;
      }
    }
  }
  EXPECT_GT(valid, 500);
}

TEST(EveryGeneratedSchedule, Gpipe) {
  expect_all_valid("gpipe", 1, [](Index, Index m) { return m; });
}
TEST(EveryGeneratedSchedule, OneForwardOneBackward) {
  expect_all_valid("1f1b", 1, [](Index p, Index m) { return std::min(p, m); });
}
TEST(EveryGeneratedSchedule, ZeroBubble) {
  expect_all_valid("zero-bubble", 1, [](Index p, Index m) { return std::min(p, m); });
}
TEST(EveryGeneratedSchedule, Interleaved) {
  for (const int chunks : {1, 2, 3, 4}) {
    expect_all_valid("interleaved", chunks, [&](Index p, Index m) {
      if (m < p || (m > 2 * p && m % p != 0)) return Index{0};
      const Index group = m < 2 * p ? m : p;
      return std::min(m * chunks, 2 * (p - 1) + (chunks - 1) * group + 1);
    });
  }
}

TEST(Validate, TheMemoryBoundIsTight) {
  for (const std::string& kind : schedule_kinds()) {
    const Schedule schedule = make_schedule(kind, 4, 8, kind == "interleaved" ? 2 : 1);
    const Index most = in_flight(schedule, 0);
    EXPECT_EQ(complaint(schedule, most), "");
    EXPECT_THAT(complaint(schedule, most - 1),
                AllOf(HasSubstr("schedule " + kind + ": stage 0, action " + std::to_string(most - 1) +
                                " (forward of micro-batch"),
                      HasSubstr("the bound is " + std::to_string(most - 1))));
  }
}

TEST(Validate, NoticesEveryActionThatIsMissingOrThereTwice) {
  for (const std::string& kind : schedule_kinds()) {
    const Schedule schedule = make_schedule(kind, 3, 4, kind == "interleaved" ? 2 : 1);
    for (std::size_t stage = 0; stage < 3; ++stage) {
      const std::string names_stage = "schedule " + kind + ": stage " + std::to_string(stage);
      for (std::size_t i = 0; i < schedule.stages[stage].size(); ++i) {
        const auto at = static_cast<std::ptrdiff_t>(i);
        EXPECT_THAT(complaint(damaged(schedule, stage, [&](auto& a) { a.erase(a.begin() + at); })),
                    HasSubstr(names_stage));
        EXPECT_THAT(complaint(damaged(schedule, stage, [&](auto& a) { a.insert(a.begin() + at, a[i]); })),
                    HasSubstr(names_stage));
        EXPECT_THAT(complaint(damaged(schedule, stage, [&](auto& a) { a[i].reduces = !a[i].reduces; })),
                    AllOf(HasSubstr(names_stage), HasSubstr("reduces")));
      }
    }
  }
  const Schedule schedule = make_schedule("1f1b", 2, 2, 1);
  EXPECT_THAT(complaint(damaged(schedule, 1, [](auto& a) { a.pop_back(); })),
              HasSubstr("schedule 1f1b: stage 1 lacks backward of micro-batch 1, chunk 0"));
  EXPECT_THAT(complaint(damaged(schedule, 1, [](auto& a) { a.push_back(a.back()); })),
              HasSubstr("stage 1, action 4 (backward of micro-batch 1, chunk 0) comes after all 2"));
}

TEST(Validate, NoticesActionsOfAChunkInAnotherOrder) {
  for (const std::string& kind : schedule_kinds()) {
    const Schedule schedule = make_schedule(kind, 3, 5, kind == "interleaved" ? 2 : 1);
    for (std::size_t stage = 0; stage < 3; ++stage) {
      for (std::size_t i = 0; i < schedule.stages[stage].size(); ++i) {
        for (std::size_t j = 0; j < i; ++j) {
          const Action &one = schedule.stages[stage][j], &two = schedule.stages[stage][i];
          if (one.kind != two.kind || one.chunk != two.chunk) continue;
          EXPECT_THAT(complaint(damaged(schedule, stage, [&](auto& a) { std::swap(a[i], a[j]); })),
                      AllOf(HasSubstr("schedule " + kind + ": stage " + std::to_string(stage) + ", action " +
                                      std::to_string(j)),
                            HasSubstr("is out of order")));
        }
      }
    }
  }
}

TEST(Validate, NoticesUseBeforeItIsComputed) {
  const Schedule alternating = make_schedule("1f1b", 2, 3, 1);
  EXPECT_THAT(complaint(damaged(alternating, 1, [](auto& a) { std::swap(a[0], a[1]); })),
              HasSubstr("stage 1, action 0 (backward of micro-batch 0, chunk 0) comes before its forward"));
  const Schedule split = make_schedule("zero-bubble", 2, 3, 1);
  const std::size_t input = position_of(split, 0, ActionKind::backward_input, 0);
  ASSERT_EQ(position_of(split, 0, ActionKind::backward_weight, 0), input + 1);
  EXPECT_THAT(complaint(damaged(split, 0, [&](auto& a) { std::swap(a[input], a[input + 1]); })),
              HasSubstr("(backward_weight of micro-batch 0, chunk 0) comes before its backward_input"));
  EXPECT_THAT(complaint(damaged(split, 0, [&](auto& a) { a[input].kind = ActionKind::backward; })),
              HasSubstr("mixes backward with backward_input and backward_weight"));
  EXPECT_THAT(complaint(damaged(split, 0, [](auto& a) { a[0].chunk = 1; })),
              HasSubstr("has a chunk that is not one of 1"));
}

TEST(Validate, NoticesAChannelInAnotherOrder) {
  // Chunk 0 of micro-batch 1 and chunk 1 of micro-batch 0 change places: each chunk is in order, the channel
  // is not.
  const Schedule schedule = make_schedule("interleaved", 2, 4, 2);
  const std::size_t i = position_of(schedule, 1, ActionKind::forward, 1, 0);
  ASSERT_EQ(position_of(schedule, 1, ActionKind::forward, 0, 1), i + 1);
  EXPECT_THAT(
      complaint(damaged(schedule, 1, [&](auto& a) { std::swap(a[i], a[i + 1]); })),
      AllOf(HasSubstr("schedule interleaved: stage 0, action 1 (forward of micro-batch 1, chunk 0) sends "
                      "its activations when stage 1, action 1 (forward of micro-batch 0, chunk 1) "
                      "receives next")));
}

TEST(Validate, NoticesAGradientChannelInAnotherOrder) {
  const Schedule schedule = make_schedule("interleaved", 2, 2, 2);
  // The last stage ends with B0.1 B1.1 B0.0 B1.0.
  const std::size_t i = position_of(schedule, 1, ActionKind::backward, 1, 1);
  ASSERT_EQ(position_of(schedule, 1, ActionKind::backward, 0, 0), i + 1);
  EXPECT_THAT(complaint(damaged(schedule, 1, [&](auto& a) { std::swap(a[i], a[i + 1]); })),
              AllOf(HasSubstr("gradients"), HasSubstr("receives next")));
}

TEST(Validate, NoticesStagesThatWaitForEachOther) {
  // Stage 0 wants the gradient of micro-batch 1 before it computes micro-batch 2; stage 1 computes 2 first.
  const Schedule schedule = make_schedule("gpipe", 2, 3, 1);
  EXPECT_THAT(
      complaint(
          damaged(schedule, 0, [](auto& a) { std::rotate(a.begin() + 2, a.begin() + 3, a.end() - 1); })),
      AllOf(HasSubstr("schedule gpipe: stage 0, action 2 (backward of micro-batch 0, chunk 0) waits for "
                      "ever for gradients from stage 1, action 2 (forward of micro-batch 2, chunk 0)")));
}

TEST(Validate, NoticesSendsThatWouldWaitForEver) {
  // With buffers this ends. Without, stage 0 cannot hand over micro-batch 3 before stage 1 has got rid of the
  // gradient of micro-batch 1, which stage 0 takes only later. With a micro-batch less each has its place.
  const auto mixed = [](Index micro_batches) {
    Schedule schedule = make_schedule("gpipe", 2, micro_batches, 1);
    schedule.stages[1] = make_schedule("1f1b", 2, micro_batches, 1).stages[1];
    return schedule;
  };
  EXPECT_EQ(complaint(mixed(3)), "");
  EXPECT_THAT(
      complaint(mixed(4)),
      HasSubstr("schedule gpipe: stage 0, action 3 (forward of micro-batch 3, chunk 0) waits for ever to "
                "send its activations where sends wait for their receives: stage 1, action 3 (backward "
                "of micro-batch 1, chunk 0) has not posted it"));
}

TEST(Validate, NoticesShapesThatAreNoSchedule) {
  EXPECT_NE(complaint(Schedule{"none", 1, 1, {}}), "");
  EXPECT_NE(complaint(Schedule{"none", 0, 1, {{}}}), "");
  EXPECT_NE(complaint(Schedule{"none", 1, 0, {{}}}), "");
  EXPECT_NE(complaint(Schedule{"none", 1, 2, {{}}}), "");
  EXPECT_NE(complaint(Schedule{"none", 1, 1, {{}}}), "");
}

}  // namespace
}  // namespace cartan::pipeline
