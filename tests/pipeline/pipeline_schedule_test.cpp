// What each generator promises: order, memory, and what it refuses.
#include "cartan/pipeline/schedule.hpp"

#include <gmock/gmock.h>

#include <algorithm>

namespace cartan::pipeline {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string refusal(std::string_view kind, int stages, Index micro_batches, int chunks) {
  try {
    make_schedule(kind, stages, micro_batches, chunks);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

/// "F0 B0 ..." of one stage, chunks as in F2.1.
std::string text_of(const Schedule& schedule, std::size_t stage) {
  std::string text;
  for (const Action& action : schedule.stages.at(stage)) {
    text += text.empty() ? "" : " ";
    text += "FBIW"[static_cast<std::size_t>(action.kind)] + std::to_string(action.micro_batch);
    if (schedule.chunks > 1) text += "." + std::to_string(action.chunk);
  }
  return text;
}

TEST(SingleStage, AlternatesAndReducesAtTheEnd) {
  for (const Index micro_batches : {1, 2, 7}) {
    const Schedule schedule = single_stage(micro_batches);
    EXPECT_NO_THROW(validate(schedule, 1));
    EXPECT_EQ(in_flight(schedule, 0), 1);
    std::vector<Action> ran;
    execute(schedule, 0, [&](const Action& action) { ran.push_back(action); });
    ASSERT_EQ(ran.size(), static_cast<std::size_t>(2 * micro_batches));
    EXPECT_EQ(ran.back(), (Action{ActionKind::backward, micro_batches - 1, 0, true}));
  }
}

TEST(MakeSchedule, WritesTheListsOfThePapers) {
  const Schedule gpipe = make_schedule("gpipe", 2, 3, 1);
  for (const std::size_t stage : {0, 1}) EXPECT_EQ(text_of(gpipe, stage), "F0 F1 F2 B0 B1 B2");
  const Schedule alternating = make_schedule("1f1b", 3, 4, 1);
  EXPECT_EQ(text_of(alternating, 0), "F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(text_of(alternating, 1), "F0 F1 B0 F2 B1 F3 B2 B3");
  EXPECT_EQ(text_of(alternating, 2), "F0 B0 F1 B1 F2 B2 F3 B3");
  const Schedule interleaved = make_schedule("interleaved", 2, 4, 2);
  EXPECT_EQ(text_of(interleaved, 1),
            "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0");
  const Schedule zero_bubble = make_schedule("zero-bubble", 3, 4, 1);
  EXPECT_EQ(text_of(zero_bubble, 0), "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3");
  EXPECT_EQ(text_of(zero_bubble, 1), "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3");
  EXPECT_EQ(text_of(zero_bubble, 2), "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3");
}

TEST(MakeSchedule, EachChunkReducesOnceAtItsLastBackward) {
  for (const std::string& kind : schedule_kinds()) {
    const Schedule schedule = make_schedule(kind, 3, 5, kind == "interleaved" ? 3 : 1);
    for (const auto& actions : schedule.stages) {
      std::vector<int> chunks;
      for (const Action& action : actions) {
        if (!action.reduces) continue;
        EXPECT_EQ(action.micro_batch, 4);
        EXPECT_EQ(action.kind, kind == "zero-bubble" ? ActionKind::backward_weight : ActionKind::backward);
        chunks.push_back(action.chunk);
      }
      // The last part's gradients are complete first.
      EXPECT_EQ(chunks, kind == "interleaved" ? (std::vector{2, 1, 0}) : std::vector{0}) << kind;
    }
  }
}

TEST(InFlight, IsAllOfTheMicroBatchesForGpipeAndTheStagesBehindFor1f1b) {
  for (const int stages : {1, 2, 5, 8}) {
    for (const Index micro_batches : {1, 3, 8, 17}) {
      const Schedule gpipe = make_schedule("gpipe", stages, micro_batches, 1);
      const Schedule alternating = make_schedule("1f1b", stages, micro_batches, 1);
      for (int stage = 0; stage < stages; ++stage) {
        const auto s = static_cast<std::size_t>(stage);
        EXPECT_EQ(in_flight(gpipe, s), micro_batches);
        EXPECT_EQ(in_flight(alternating, s), std::min<Index>(micro_batches, stages - stage));
      }
    }
  }
}

TEST(InFlight, OfZeroBubbleIsThatOf1f1bOnItsFirstStage) {
  for (const int stages : {1, 2, 5, 8}) {
    for (const Index micro_batches : {1, 3, 8, 17}) {
      const Index bound = in_flight(make_schedule("1f1b", stages, micro_batches, 1), 0);
      const Schedule schedule = make_schedule("zero-bubble", stages, micro_batches, 1);
      for (std::size_t stage = 0; stage < schedule.stages.size(); ++stage)
        EXPECT_LE(in_flight(schedule, stage), bound) << stages << " " << micro_batches << " " << stage;
    }
  }
}

TEST(InFlight, OfInterleavedFollowsItsFormula) {
  for (const int stages : {2, 4, 7}) {
    for (const int chunks : {1, 2, 4}) {
      for (const Index group : {stages, stages + 1, 2 * stages - 1}) {
        const Index micro_batches = group == stages ? 8 * group : group;
        const Schedule schedule = make_schedule("interleaved", stages, micro_batches, chunks);
        for (int stage = 0; stage < stages; ++stage) {
          const Index kept = 2 * (stages - 1 - stage) + (chunks - 1) * group + 1;
          EXPECT_EQ(in_flight(schedule, static_cast<std::size_t>(stage)),
                    std::min(micro_batches * chunks, kept));
        }
      }
    }
  }
}

TEST(PartsAndRoutes, FollowTheRing) {
  const Schedule schedule = make_schedule("interleaved", 3, 3, 2);
  EXPECT_EQ(part_of(schedule, 0, 0), 0);
  EXPECT_EQ(part_of(schedule, 2, 0), 2);
  EXPECT_EQ(part_of(schedule, 0, 1), 3);
  EXPECT_EQ(part_of(schedule, 2, 1), 5);
  using Ends = std::pair<std::optional<std::size_t>, std::optional<std::size_t>>;
  const auto route = [&](std::size_t stage, ActionKind kind, int chunk) {
    const Route r = route_of(schedule, stage, {kind, 0, chunk});
    return Ends{r.from, r.to};
  };
  EXPECT_EQ(route(0, ActionKind::forward, 0), (Ends{std::nullopt, 1}));
  EXPECT_EQ(route(1, ActionKind::forward, 1), (Ends{0, 2}));
  EXPECT_EQ(route(2, ActionKind::forward, 0), (Ends{1, 0}));
  EXPECT_EQ(route(0, ActionKind::forward, 1), (Ends{2, 1}));
  EXPECT_EQ(route(2, ActionKind::forward, 1), (Ends{1, std::nullopt}));
  EXPECT_EQ(route(2, ActionKind::backward, 1), (Ends{std::nullopt, 1}));
  EXPECT_EQ(route(0, ActionKind::backward_input, 1), (Ends{1, 2}));
  EXPECT_EQ(route(0, ActionKind::backward, 0), (Ends{1, std::nullopt}));
  EXPECT_EQ(route(1, ActionKind::backward_weight, 0), (Ends{std::nullopt, std::nullopt}));
}

TEST(MakeSchedule, RefusesWhatDoesNotFitAndSaysWhatWould) {
  EXPECT_THAT(refusal("dualpipe", 2, 4, 1), HasSubstr("pipeline.schedule = dualpipe: use one of gpipe, 1f1b, "
                                                      "interleaved, zero-bubble"));
  for (const char* kind : {"gpipe", "1f1b", "zero-bubble"})
    EXPECT_THAT(refusal(kind, 2, 4, 2), AllOf(HasSubstr("pipeline.chunks = 2"), HasSubstr(kind),
                                              HasSubstr("pipeline.schedule interleaved")));
  EXPECT_THAT(refusal("1f1b", 2, 4, 0), HasSubstr("pipeline.chunks = 0: must be at least 1"));
  EXPECT_THAT(refusal("interleaved", 1, 4, 2), HasSubstr("pipeline.chunks = 2 needs at least two stages"));
  EXPECT_THAT(
      refusal("interleaved", 8, 7, 2),
      AllOf(HasSubstr("pipeline.schedule = interleaved on mesh.pp = 8 stages cannot run 7 micro-batches"),
            HasSubstr("batch.global"), HasSubstr("use 8 of them, or another schedule")));
  EXPECT_THAT(refusal("interleaved", 4, 11, 2), HasSubstr("use 8 or 12 of them"));
  for (const Index micro_batches : {5, 7, 8, 12}) EXPECT_EQ(refusal("interleaved", 4, micro_batches, 2), "");
  EXPECT_EQ(refusal("interleaved", 1, 4, 1), "");
}

}  // namespace
}  // namespace cartan::pipeline
