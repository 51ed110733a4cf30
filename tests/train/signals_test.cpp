#include "train/signals.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>

namespace cartan::train {
namespace {

TEST(SignalWatch, RemembersARequestAndRestoresTheHandlers) {
  const auto before = std::signal(SIGUSR1, SIG_IGN);
  {
    SignalWatch watch;
    EXPECT_EQ(watch.caught(), 0);
    std::raise(SIGUSR1);
    EXPECT_EQ(watch.caught(), SIGUSR1);
  }
  EXPECT_EQ(std::signal(SIGUSR1, before), SIG_IGN);
}

TEST(SignalWatch, ASecondInterruptEndsAtOnce) {
  EXPECT_EXIT(
      {
        SignalWatch watch;
        std::raise(SIGINT);
        std::raise(SIGINT);
      },
      testing::ExitedWithCode(128 + SIGINT), "");
}

// srun --kill-on-bad-exit terminates the ranks that leave after the first: the code of all must stay 75.
TEST(SignalWatch, ARunThatIsOverKeepsItsExitCode) {
  EXPECT_EXIT(
      {
        {
          SignalWatch watch;
          watch.retire();
          std::raise(SIGTERM);
        }
        std::raise(SIGTERM);
        std::raise(SIGUSR1);
        std::exit(75);
      },
      testing::ExitedWithCode(75), "");
}

}  // namespace
}  // namespace cartan::train
