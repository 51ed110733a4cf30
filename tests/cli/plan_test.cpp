// `cartan plan --bubble` as a function: its numbers, its words, and what it refuses.
#include <gmock/gmock.h>

#include "cartan/core/json.hpp"
#include "cartan/core/text.hpp"
#include "cli/program_run.hpp"

namespace cartan::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

Outcome plan(std::vector<std::string> words) {
  words.insert(words.begin(), "plan");
  return run(std::move(words));
}

Json plan_json(std::vector<std::string> words) {
  words.insert(words.begin(), {"--bubble", "--json"});
  const Outcome outcome = plan(words);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return parse_json(outcome.out, "stdout");
}

const Json& row_of(const Json& json, const std::string& schedule, int chunks) {
  for (const Json& row : json.at("schedules")) {
    if (row.at("schedule") == schedule && row.at("chunks") == chunks) return row;
  }
  throw std::logic_error("no row " + schedule);
}

TEST(Plan, PrintsTheIdleShareOfEachSchedule) {
  const Outcome outcome = plan({"--bubble", "--pp", "4", "--batch.global", "8", "--batch.micro", "1"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("4 stages, 8 micro-batches a step"),
                                 HasSubstr("\n  gpipe             1   27.3 %          8\n"),
                                 HasSubstr("\n* 1f1b              1   27.3 %          4\n"),
                                 HasSubstr("\n  interleaved       2   15.8 %        5.5\n"),
                                 HasSubstr("\n  zero-bubble       1   11.1 %          4\n")));
}

TEST(Plan, PrintsOneObjectForMachines) {
  const Json json = plan_json({"--pp", "8", "--dp", "2", "--batch.global", "128", "--batch.micro", "2",
                               "--pipeline.schedule", "interleaved", "--pipeline.chunks", "2"});
  EXPECT_EQ(json.at("stages"), 8);
  EXPECT_EQ(json.at("micro_batches"), 32);
  EXPECT_EQ(json.at("schedules").size(), 4u);
  EXPECT_NEAR(row_of(json, "1f1b", 1).at("idle_share"), 7.0 / 39, 1e-12);
  EXPECT_NEAR(row_of(json, "interleaved", 2).at("idle_share"), 7.0 / 71, 1e-12);
  EXPECT_NEAR(row_of(json, "zero-bubble", 1).at("idle_share"), 7.0 / 103, 1e-12);
  EXPECT_EQ(row_of(json, "gpipe", 1).at("in_flight"), 32);
  EXPECT_EQ(row_of(json, "interleaved", 2).at("in_flight"), 11.5);
  EXPECT_EQ(row_of(json, "interleaved", 2).at("configured"), true);
  EXPECT_EQ(row_of(json, "1f1b", 1).at("configured"), false);
}

TEST(Plan, DerivesTheMicroBatches) {
  // Two for each stage if the batch allows it; mesh.dp = 0 is one replica.
  EXPECT_EQ(plan_json({"--pp", "4", "--batch.global", "32"}).at("batch_micro"), 4);
  EXPECT_EQ(plan_json({"--pp", "4", "--batch.global", "8"}).at("micro_batches"), 8);
  EXPECT_EQ(plan_json({"--pp", "4", "--dp", "2", "--batch.global", "8"}).at("micro_batches"), 4);
  EXPECT_EQ(plan_json({"--pp", "1", "--batch.global", "32"}).at("batch_micro"), 8);
}

TEST(Plan, OneStageIsNeverIdle) {
  const Json json = plan_json({"--pp", "1", "--batch.global", "8", "--batch.micro", "2"});
  EXPECT_EQ(json.at("schedules").size(), 4u);
  for (const Json& row : json.at("schedules")) EXPECT_NEAR(row.at("idle_share"), 0, 1e-12);
}

TEST(Plan, ShowsInterleavedWithOneChunkAndWithTwo) {
  const Json json = plan_json({"--pp", "2", "--batch.global", "8", "--pipeline.schedule", "interleaved"});
  EXPECT_EQ(json.at("schedules").size(), 5u);
  EXPECT_EQ(row_of(json, "interleaved", 1).at("configured"), true);
  EXPECT_EQ(row_of(json, "interleaved", 2).at("configured"), false);
}

TEST(Plan, SaysWhyThereIsNoSuchSchedule) {
  const std::vector<std::string> words{"--pp", "4", "--batch.global", "3", "--batch.micro", "1"};
  const Json row = row_of(plan_json(words), "interleaved", 2);
  EXPECT_TRUE(row.at("idle_share").is_null());
  EXPECT_THAT(row.at("problem").get<std::string>(), HasSubstr("use 4 of them"));
  std::vector<std::string> table{"--bubble"};
  table.insert(table.end(), words.begin(), words.end());
  EXPECT_THAT(plan(table).out, AllOf(HasSubstr("\n  interleaved       2        -          -\n"),
                                     HasSubstr("cannot run 3 micro-batches")));
}

TEST(Plan, DrawsTheConfiguredSchedule) {
  const Outcome outcome = plan({"--bubble", "--draw", "--pp", "2", "--batch.global", "3", "--batch.micro",
                                "1", "--pipeline.schedule", "zero-bubble"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("\nstage 0  F0 F1 .. B0 W0 F2 B1 W1 B2 W2\n"
                                     "stage 1  .. F0 B0 F1 B1 W0 F2 B2 W1 W2\n"));
  for (const std::string& line : split(outcome.out, '\n')) EXPECT_LE(line.size(), 110u) << line;
}

TEST(Plan, RefusesWhatItCannotPlan) {
  const auto refused = [](std::vector<std::string> words, int code, const auto& message) {
    const Outcome outcome = plan(std::move(words));
    EXPECT_EQ(outcome.code, code);
    EXPECT_THAT(outcome.err, message);
    EXPECT_THAT(outcome.out, IsEmpty());
  };
  refused({"--pp", "4"}, 64, HasSubstr("cartan plan needs --bubble"));
  refused({"--bubble", "--draw", "--json"}, 64, HasSubstr("--draw and --json"));
  refused({"--bubble", "--pp", "4", "--batch.global", "7", "--batch.micro", "2"}, 78,
          AllOf(HasSubstr("batch.global = 7 (command line) is not divisible"), HasSubstr("6 or 8")));
  refused({"--bubble", "--pp", "4", "--batch.global", "6", "--batch.micro", "2", "--pipeline.schedule",
           "interleaved"},
          78,
          AllOf(HasSubstr("pipeline.schedule = interleaved (command line) on mesh.pp = 4 (command line)"),
                HasSubstr("cannot run 3 micro-batches"), HasSubstr("use 4")));
  refused({"--bubble", "--pp", "4", "--pipeline.chunks", "2"}, 78,
          HasSubstr("pipeline.chunks = 2 (command line) does not fit pipeline.schedule = 1f1b (default)"));
  refused({"--bubble", "--pp", "1024", "--batch.global", "1000000000", "--batch.micro", "1"}, 78,
          HasSubstr("too many to simulate"));
}

}  // namespace
}  // namespace cartan::cli
