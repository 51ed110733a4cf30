#include "cartan/optim/config.hpp"

#include <gmock/gmock.h>

#include <limits>

namespace cartan::optim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> problems_of(const OptimConfig& config) {
  Problems problems;
  check(config, problems);
  return problems.lines();
}

std::vector<std::string> problems_of(const ScheduleConfig& config, Index total_steps) {
  Problems problems;
  check(config, total_steps, problems);
  return problems.lines();
}

TEST(OptimConfig, DefaultsAreSound) { EXPECT_THAT(problems_of(OptimConfig{}), IsEmpty()); }

TEST(OptimConfig, NamesEveryWrongValue) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(problems_of(OptimConfig{
                  .lr = -1, .beta1 = 1, .beta2 = nan, .eps = 0, .weight_decay = -0.5, .clip = nan}),
              ElementsAre(HasSubstr("optim.lr = -1"), HasSubstr("optim.beta1 = 1"), HasSubstr("optim.beta2"),
                          HasSubstr("optim.eps = 0"), HasSubstr("optim.weight-decay = -0.5"),
                          HasSubstr("optim.clip")));
}

TEST(ScheduleConfig, DefaultsAreSoundForRunsOfAnyLength) {
  for (Index steps : {0, 1, 7, 1000}) EXPECT_THAT(problems_of(ScheduleConfig{}, steps), IsEmpty()) << steps;
}

TEST(ScheduleConfig, NamesEveryWrongValue) {
  EXPECT_THAT(
      problems_of({.kind = "step", .warmup = -1, .min_lr = -2, .decay_steps = -3, .warmup_type = "exp"}, 100),
      ElementsAre(HasSubstr("schedule.kind = step"), HasSubstr("schedule.warmup-type = exp"),
                  HasSubstr("schedule.min-lr = -2"), HasSubstr("schedule.warmup = -1"),
                  HasSubstr("schedule.decay-steps = -3")));
}

TEST(ScheduleConfig, WarmupMustEndInsideARunThatDecays) {
  EXPECT_THAT(problems_of({.kind = "cosine", .warmup = 100}, 100), IsEmpty());
  EXPECT_THAT(problems_of({.kind = "cosine", .warmup = 101}, 100),
              ElementsAre(HasSubstr("schedule.warmup = 101 is longer than run.steps = 100")));
  EXPECT_THAT(problems_of({.kind = "constant", .warmup = 101}, 100), IsEmpty());
  EXPECT_THAT(problems_of({.kind = "warmup-lr", .warmup = 101}, 100), IsEmpty());
}

TEST(ScheduleConfig, TheCourseMayBeLongerThanTheRun) {
  EXPECT_THAT(problems_of({.kind = "cosine", .length = 200, .warmup = 101}, 100), IsEmpty());
  EXPECT_THAT(problems_of({.kind = "warmup-decay-lr", .length = 50, .warmup = 60}, 100),
              ElementsAre(HasSubstr("schedule.warmup = 60 is longer than schedule.length = 50")));
  EXPECT_THAT(problems_of({.kind = "linear", .length = -1, .warmup_begin = -0.5}, 100),
              ElementsAre(HasSubstr("schedule.warmup-begin = -0.5"), HasSubstr("schedule.length = -1")));
}

TEST(ScheduleConfig, WsdDecayMustFitBehindTheWarmup) {
  EXPECT_THAT(problems_of({.kind = "wsd", .warmup = 40, .decay_steps = 60}, 100), IsEmpty());
  EXPECT_THAT(problems_of({.kind = "wsd", .warmup = 40, .decay_steps = 61}, 100),
              ElementsAre(HasSubstr("leaves 60 updates")));
}

}  // namespace
}  // namespace cartan::optim
