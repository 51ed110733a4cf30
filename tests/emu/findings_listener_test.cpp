// The listener in tests that leave findings behind: this program runs them, its disabled ones, in a process
// of its own.
#include <gmock/gmock.h>

#include <unistd.h>

#include <cstdio>

#include "emu/emu.hpp"

namespace emu::testing {
namespace {

using ::testing::HasSubstr;

TEST(LeftBehind, DISABLED_Finding) { report("nobody takes this"); }
TEST(LeftBehind, DISABLED_Nothing) {
  report("somebody takes this");
  EXPECT_FINDING("takes this");
}

struct Outcome {
  int status = 0;
  std::string output;
};

/// A test of this program.
Outcome run(const std::string& test) {
  const std::string command = "/proc/" + std::to_string(getpid()) +
                              "/exe --gtest_also_run_disabled_tests --gtest_filter=" + test + " 2>&1";
  Outcome outcome;
  std::FILE* const pipe = popen(command.c_str(), "r");
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) outcome.output += static_cast<char>(c);
  outcome.status = pclose(pipe);
  return outcome;
}

TEST(FindingsListener, FailsATestThatLeavesAFinding) {
  const Outcome outcome = run("LeftBehind.DISABLED_Finding");
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("nobody takes this"));
  EXPECT_THAT(outcome.output, HasSubstr("[  FAILED  ] LeftBehind.DISABLED_Finding"));
}

TEST(FindingsListener, PassesATestThatTakesItsFindings) {
  const Outcome outcome = run("LeftBehind.DISABLED_Nothing");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("[  PASSED  ] 1 test"));
}

}  // namespace
}  // namespace emu::testing
