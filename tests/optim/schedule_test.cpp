// The schedules against tables made with DeepSpeed, Hugging Face and Megatron-LM, and against values that a
// reader computes by hand.
#include "cartan/optim/schedule.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <utility>

#include "cartan/core/json.hpp"

namespace cartan::optim {
namespace {

const Json& tables() {
  static const Json json = read_json(CARTAN_GOLDEN_DIR "/lr_schedules.json");
  return json.at("tables");
}

void expect_near(double found, double expected, Index step, const std::string& what) {
  EXPECT_LE(std::abs(found - expected), 1e-12 * std::abs(expected) + 1e-300)
      << what << ", update " << step << ": " << found << " instead of " << expected;
}

/// A schedule and its peak rate.
using Course = std::pair<ScheduleConfig, double>;

/// Compares all of a table with each name, of which there must be so many.
void expect_tables(const char* name, int count, const std::function<Course(const Json& table)>& course_of) {
  int compared = 0;
  for (const Json& table : tables()) {
    if (table.at("name") != name) continue;
    const auto [schedule, peak] = course_of(table);
    Index step = 0;
    for (const Json& expected : table.at("lr")) {
      expect_near(learning_rate(schedule, peak, step, 1000), expected, step, table.at("params").dump());
      ++step;
    }
    ++compared;
  }
  EXPECT_EQ(compared, count);
}

TEST(WarmupLr, IsDeepspeeds) {
  expect_tables("WarmupLR", 3, [](const Json& table) -> Course {
    const Json& params = table.at("params");
    return {{.kind = "warmup-lr",
             .warmup = params.at("warmup_num_steps"),
             .min_lr = params.at("warmup_min_lr"),
             .warmup_type = params.at("warmup_type")},
            params.at("warmup_max_lr")};
  });
}

TEST(WarmupDecayLr, IsDeepspeeds) {
  expect_tables("WarmupDecayLR", 2, [](const Json& table) -> Course {
    const Json& params = table.at("params");
    return {{.kind = "warmup-decay-lr",
             .length = params.at("total_num_steps"),
             .warmup = params.at("warmup_num_steps"),
             .min_lr = params.at("warmup_min_lr"),
             .warmup_type = params.at("warmup_type")},
            params.at("warmup_max_lr")};
  });
}

TEST(WarmupCosineLr, IsDeepspeeds) {
  expect_tables("WarmupCosineLR", 2, [](const Json& table) -> Course {
    const Json& params = table.at("params");
    const double peak = table.at("base_lr");
    return {{.kind = "warmup-cosine-lr",
             .length = params.at("total_num_steps"),
             .warmup = params.at("warmup_num_steps"),
             .warmup_begin = peak * params.value("warmup_min_ratio", 0.0),
             .min_lr = peak * params.value("cos_min_ratio", 0.0001),
             .warmup_type = params.at("warmup_type")},
            peak};
  });
}

TEST(LinearAndCosine, WarmUpFromABeginningAsOthersDo) {
  int compared = 0;
  for (const Json& table : tables()) {
    const Json& params = table.at("params");
    const bool is_megatron = table.at("family") == "megatron";
    const std::string kind = is_megatron ? params.at("lr_decay_style") : table.at("name");
    if (kind != "linear" && kind != "cosine") continue;
    const ScheduleConfig schedule{.kind = kind,
                                  .length = params.at(is_megatron ? "lr_decay_steps" : "num_training_steps"),
                                  .warmup = params.at(is_megatron ? "lr_warmup_steps" : "num_warmup_steps"),
                                  .warmup_begin = params.value("init_lr", 0.0),
                                  .min_lr = params.value("min_lr", 0.0)};
    const double peak = is_megatron ? params.at("max_lr") : table.at("base_lr");
    // Past its end Hugging Face's cosine rises again.
    for (Index step = 0; step < schedule.length; ++step)
      expect_near(learning_rate(schedule, peak, step, 1000), table.at("lr").at(step), step,
                  kind + params.dump());
    ++compared;
  }
  EXPECT_EQ(compared, 4);
}

TEST(LinearAndCosine, AreHuggingFacesAfterTheWarmup) {
  int compared = 0;
  for (const Json& table : tables()) {
    if (table.at("family") != "hf") continue;
    const std::string name = table.at("name");
    const Index warmup = table.at("params").at("num_warmup_steps");
    const Index total = table.at("params").value("num_training_steps", Index{12});
    const ScheduleConfig schedule{.kind = name == "constant_with_warmup" ? "constant" : name,
                                  .warmup = warmup};
    for (Index step = warmup; step < total; ++step)
      expect_near(learning_rate(schedule, table.at("base_lr"), step, total), table.at("lr").at(step), step,
                  name);
    ++compared;
  }
  EXPECT_EQ(compared, 3);
}

TEST(LinearAndCosine, AreMegatronsAfterTheWarmup) {
  int compared = 0;
  for (const Json& table : tables()) {
    if (table.at("family") != "megatron") continue;
    const Json& params = table.at("params");
    const std::string style = params.at("lr_decay_style");
    if (style != "cosine" && style != "linear") continue;
    const ScheduleConfig schedule{
        .kind = style, .warmup = params.at("lr_warmup_steps"), .min_lr = params.at("min_lr")};
    const auto count = static_cast<Index>(table.at("lr").size());
    for (Index step = schedule.warmup; step < count; ++step)
      expect_near(learning_rate(schedule, params.at("max_lr"), step, params.at("lr_decay_steps")),
                  table.at("lr").at(step), step, style);
    ++compared;
  }
  EXPECT_EQ(compared, 2);
}

TEST(Wsd, StaysFlatAndDecaysWhereMegatronsDoes) {
  for (const Json& table : tables()) {
    if (table.at("family") != "megatron" || table.at("params").at("lr_decay_style") != "WSD") continue;
    const ScheduleConfig schedule{.kind = "wsd", .warmup = 5, .min_lr = 3e-5, .decay_steps = 12};
    for (Index step = 5; step < 48; ++step) {
      const double rate = learning_rate(schedule, 3e-4, step, 40), theirs = table.at("lr").at(step);
      if (step <= 28 || step >= 40) {
        expect_near(rate, theirs, step, "wsd");
      } else {  // the table's decay is 1 - sqrt(x), which lies below 1 - x
        expect_near(rate, 3e-5 + (3e-4 - 3e-5) * (1 - static_cast<double>(step - 28) / 12), step, "wsd");
        EXPECT_GT(rate, theirs);
      }
    }
    return;
  }
  FAIL() << "no WSD table";
}

TEST(Cosine, HasTheReferenceRunsRates) {
  const ScheduleConfig schedule{.kind = "cosine", .warmup = 3, .min_lr = 1e-4};
  const double expected[] = {0.0003333333333333333,
                             0.0006666666666666666,
                             0.001,
                             0.001,
                             0.0009554359905560886,
                             0.0008305704108364302,
                             0.0006501344202803415,
                             0.00044986557971965854,
                             0.00026942958916356994,
                             0.00014456400944391144};
  for (Index step = 0; step < 10; ++step)
    expect_near(learning_rate(schedule, 1e-3, step, 10), expected[step], step, "cosine");
}

TEST(Wsd, DecaysOverATenthOfTheRunUnlessTold) {
  const ScheduleConfig schedule{.kind = "wsd"};
  EXPECT_EQ(learning_rate(schedule, 1.0, 90, 100), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1.0, 95, 100), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1.0, 99, 100), 0.1);
  EXPECT_EQ(learning_rate(schedule, 1.0, 2, 3), 1.0);  // a tenth of 3 counts as 1: s = N - D is still flat
}

TEST(Schedules, AreDefinedInRunsOfOneUpdateAndPastTheEnd) {
  for (const char* kind : {"constant", "linear", "cosine", "wsd"}) {
    for (Index warmup : {0, 1}) {
      const ScheduleConfig schedule{.kind = kind, .warmup = warmup, .min_lr = 0.25};
      EXPECT_EQ(learning_rate(schedule, 1.0, 0, 1), 1.0) << kind << " warmup " << warmup;
      const double after = schedule.kind == "constant" ? 1.0 : 0.25;
      EXPECT_EQ(learning_rate(schedule, 1.0, 1, 1), after) << kind;
      EXPECT_EQ(learning_rate(schedule, 1.0, 1'000'000'000'000, 1), after) << kind;
    }
  }
}

TEST(Schedules, NeverIncreaseAfterTheWarmup) {
  for (const char* kind : {"constant", "linear", "cosine", "wsd"}) {
    const ScheduleConfig schedule{.kind = kind, .warmup = 7, .min_lr = 1e-5};
    for (Index step = 7; step < 53; ++step)
      EXPECT_LE(learning_rate(schedule, 1e-3, step, 53), learning_rate(schedule, 1e-3, step - 1, 53))
          << kind << " " << step;
  }
}

TEST(Schedules, RefuseAnUnknownKind) {
  EXPECT_THROW(learning_rate({.kind = "cosin"}, 1.0, 0, 10), ConfigError);
}

}  // namespace
}  // namespace cartan::optim
