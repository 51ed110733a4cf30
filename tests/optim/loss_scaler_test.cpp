// The scaler against traces made with DeepSpeed, and what it adds to them: fixed scales, a limit on skipped
// steps, restarts.
#include "cartan/optim/loss_scaler.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cartan/core/json.hpp"
#include "support/test_device.hpp"

namespace cartan::optim {
namespace {

using ::testing::HasSubstr;

device::Device& test_device() {
  static const std::unique_ptr<device::Device> device = cartan::testing::make_test_device(1);
  return *device;
}

/// A scaler whose steps a test decides on.
class Steps {
 public:
  static constexpr double kShare = 0x1p-10;
  explicit Steps(const LossScaleConfig& config)
      : scaler_(config, kShare, test_device()),
        decision_(
            test_device().allocate(sizeof(device::UpdateDecision), device::MemoryKind::workspace, "test")) {}

  /// Whether the update was applied.
  bool update(bool overflow) {
    const double used = scaler_.scale();
    cartan::testing::upload<device::UpdateDecision>(test_device(), decision_.data(),
                                                    {{overflow ? HUGE_VAL : 1.0, 1.0f, overflow ? 0 : 1}});
    scaler_.update(decision_.as<device::UpdateDecision>());
    EXPECT_EQ(scaler_.finish_step(overflow), used);
    if (scaler_.of_loss() != nullptr) {
      EXPECT_EQ(cartan::testing::download<float>(test_device(), scaler_.of_loss(), 1)[0],
                static_cast<float>(scale() * kShare));
    }
    return !overflow;
  }
  double scale() const { return scaler_.scale(); }
  const LossScaleState& state() const { return scaler_.state(); }
  void restore(const LossScaleState& state) { scaler_.restore(state); }
  const float* of_loss() const { return scaler_.of_loss(); }

 private:
  LossScaler scaler_;
  device::Buffer decision_;
};

const Json& cases() {
  static const Json json = read_json(CARTAN_GOLDEN_DIR "/loss_scale.json");
  return json.at("cases");
}

/// DeepSpeed's optimizer without ZeRO ("fused") has no hysteresis and goes on at the minimum.
LossScaleConfig config_of(const Json& golden) {
  const Json& c = golden.at("config");
  LossScaleConfig config{.enabled = true,
                         .initial_power = c.at("initial_scale_power"),
                         .window = c.at("loss_scale_window"),
                         .minimum = c.at("min_loss_scale")};
  config.hysteresis = c.value("hysteresis", 1);
  config.consecutive_hysteresis = c.value("consecutive_hysteresis", false);
  config.stops_at_minimum = c.value("raise_at_min", c.at("mode") == "zero");
  return config;
}

/// Runs a whole trace; `restart`: with a new scaler for each step, which gets the state of the one before.
void follow(const Json& golden, bool restart) {
  SCOPED_TRACE(golden.at("name").get<std::string>() + (restart ? ", restarted" : ""));
  const LossScaleConfig config = config_of(golden);
  auto scaler = std::make_unique<Steps>(config);
  Index step = 0;
  for (const Json& expected : golden.at("trace")) {
    SCOPED_TRACE(step++);
    if (restart) {
      auto next = std::make_unique<Steps>(config);
      next->restore(scaler->state());
      scaler = std::move(next);
    }
    ASSERT_EQ(scaler->scale(), expected.at("scale_used").get<double>());
    if (expected.at("error").get<bool>()) {
      ASSERT_THROW(scaler->update(expected.at("overflow")), NumericError);
      continue;
    }
    ASSERT_EQ(scaler->update(expected.at("overflow")), expected.at("step_applied").get<bool>());
    ASSERT_EQ(scaler->scale(), expected.at("scale_after").get<double>());
    if (golden.at("config").contains("hysteresis")) {
      ASSERT_EQ(scaler->state().hysteresis_left, expected.at("hysteresis_after").get<int>());
    }
  }
}

TEST(LossScaler, IsDeepspeedsStepForStep) {
  ASSERT_EQ(cases().size(), 8u);
  for (const Json& golden : cases())
    for (const bool restart : {false, true}) follow(golden, restart);
}

LossScaleConfig dynamic(int power) { return {.enabled = true, .initial_power = power}; }

std::string failure_of(Steps& scaler) {
  const LossScaleState before = scaler.state();
  try {
    scaler.update(true);
  } catch (const NumericError& error) {
    EXPECT_EQ(scaler.state(), before);
    return error.what();
  }
  return "accepted";
}

TEST(LossScaler, StaysAtAFixedScaleAndLeavesOutUpdatesThatOverflow) {
  LossScaleConfig config = dynamic(16);
  config.fixed = 384;
  config.window = 1;
  Steps scaler(config);
  for (const bool overflow : {false, false, true, true, false}) {
    EXPECT_EQ(scaler.update(overflow), !overflow);
    EXPECT_EQ(scaler.scale(), 384.0);
  }
}

TEST(LossScaler, IsOneAndBearsNoOverflowWhereItIsOff) {
  Steps scaler(LossScaleConfig{});
  EXPECT_EQ(scaler.scale(), 1.0);
  EXPECT_EQ(scaler.of_loss(), nullptr);
  for (int step = 0; step < 3000; ++step) EXPECT_TRUE(scaler.update(false));
  EXPECT_EQ(scaler.scale(), 1.0);
  EXPECT_THAT(failure_of(scaler), HasSubstr("lower optim.lr"));
}

TEST(LossScaler, SaysWhatToDoWhereTheSmallestScaleOverflows) {
  Steps scaler(dynamic(1));  // two, halved once: the first overflow is borne, the second halves
  EXPECT_FALSE(scaler.update(true));
  EXPECT_FALSE(scaler.update(true));
  EXPECT_EQ(scaler.scale(), 1.0);
  EXPECT_THAT(failure_of(scaler), HasSubstr("precision.loss-scale-min = 1"));
  EXPECT_THAT(failure_of(scaler), HasSubstr("precision.compute = bf16"));
}

TEST(LossScaler, GivesUpAfterTooManyStepsWithoutAnUpdate) {
  LossScaleConfig config = dynamic(4);
  config.stops_at_minimum = false;
  config.most_skips = 7;
  Steps scaler(config);
  for (int round = 0; round < 2; ++round) {
    for (int step = 0; step < 7; ++step) EXPECT_FALSE(scaler.update(true));
    EXPECT_EQ(scaler.state().skipped, 7);
    if (round == 0) {  // a good step, and counting starts again
      EXPECT_TRUE(scaler.update(false));
    }
  }
  EXPECT_THAT(failure_of(scaler), HasSubstr("7 steps in a row had no update"));
}

TEST(LossScaler, DoesNotGrowOutOfTheRangeOfFloats) {
  LossScaleConfig config = dynamic(90);
  config.window = 1;
  Steps scaler(config);
  for (int step = 0; step < 200; ++step) scaler.update(false);
  EXPECT_GE(scaler.scale(), 0x1p90);
  EXPECT_TRUE(std::isnormal(static_cast<float>(scaler.scale())));
  EXPECT_TRUE(std::isnormal(static_cast<float>(1 / scaler.scale())));
}

TEST(LossScaler, GoesOnWithAnotherConfigurationThanTheCheckpoints) {
  const LossScaleState stored{.scale = 4, .good_steps = 17, .hysteresis_left = 5, .skipped = 0};
  LossScaleConfig config = dynamic(10);
  config.minimum = 16;
  config.hysteresis = 3;
  Steps scaler(config);
  scaler.restore(stored);
  EXPECT_EQ(scaler.state(), (LossScaleState{16, 17, 3, 0}));
  EXPECT_TRUE(scaler.update(false));  // the device goes on from it
  EXPECT_EQ(scaler.state(), (LossScaleState{16, 18, 3, 0}));
  config.fixed = 128;
  Steps fixed(config);
  fixed.restore(stored);
  EXPECT_EQ(fixed.scale(), 128.0);
}

TEST(LossScaler, RefusesAStateThatCannotBe) {
  Steps scaler(dynamic(16));
  const LossScaleState before = scaler.state();
  for (const LossScaleState& bad : {LossScaleState{.scale = 0}, LossScaleState{.scale = NAN},
                                    LossScaleState{.scale = HUGE_VAL}, LossScaleState{.good_steps = -1},
                                    LossScaleState{.hysteresis_left = 0}, LossScaleState{.skipped = -1}})
    EXPECT_THROW(scaler.restore(bad), DataError);
  EXPECT_EQ(scaler.state(), before);
}

TEST(LossScaleConfig, EveryProblemIsNamed) {
  const auto problems_of = [](const LossScaleConfig& config) {
    Problems problems;
    check(config, problems);
    return problems.lines();
  };
  EXPECT_TRUE(problems_of({}).empty());
  EXPECT_EQ(
      problems_of({.fixed = -1, .initial_power = 101, .window = 0, .hysteresis = 0, .minimum = 0}).size(),
      5u);
  EXPECT_EQ(problems_of({.fixed = NAN, .minimum = NAN}).size(), 2u);
  const auto low = problems_of({.initial_power = 1, .minimum = 4});
  ASSERT_EQ(low.size(), 1u);
  EXPECT_THAT(low[0], HasSubstr("precision.loss-scale-power = 1"));
  EXPECT_TRUE(problems_of({.fixed = 8, .initial_power = 1, .minimum = 4}).empty());
  EXPECT_THROW(LossScaler(LossScaleConfig{.window = 0}, 1, test_device()), ConfigError);
}

}  // namespace
}  // namespace cartan::optim
