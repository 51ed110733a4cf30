#include "cartan/pipeline/schedule.hpp"

#include <gtest/gtest.h>

#include <utility>

#include "cartan/core/error.hpp"

namespace cartan::pipeline {
namespace {

TEST(SingleStage, AlternatesAndReducesAtTheEnd) {
  for (const Index micro_batches : {1, 2, 7}) {
    const Schedule schedule = single_stage(micro_batches);
    EXPECT_NO_THROW(validate(schedule));
    EXPECT_EQ(in_flight(schedule, 0), 1);
    std::vector<Action> ran;
    execute(schedule, 0, [&](const Action& action) { ran.push_back(action); });
    ASSERT_EQ(ran.size(), static_cast<std::size_t>(2 * micro_batches));
    EXPECT_EQ(ran.back(), (Action{ActionKind::backward, micro_batches - 1, true}));
  }
}

TEST(Validate, RefusesWhatCannotRun) {
  const auto broken = [](auto&& damage) {
    Schedule schedule = single_stage(3);
    damage(schedule.stages[0]);
    return schedule;
  };
  EXPECT_THROW(validate(broken([](auto& a) { a.pop_back(); })), InternalError);
  EXPECT_THROW(validate(broken([](auto& a) { std::swap(a[0], a[1]); })), InternalError);
  EXPECT_THROW(validate(broken([](auto& a) { a[2].micro_batch = 0; })), InternalError);
  EXPECT_THROW(validate(broken([](auto& a) { a[1].reduces = true; })), InternalError);
  EXPECT_THROW(validate(broken([](auto& a) { a.push_back(a.back()); })), InternalError);
}

}  // namespace
}  // namespace cartan::pipeline
