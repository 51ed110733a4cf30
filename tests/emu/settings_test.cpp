#include "emu/settings.hpp"

#include <gmock/gmock.h>

#include <cstdlib>

#include "emu/emu_fixture.hpp"

namespace emu::testing {
namespace {

/// Variables of one test.
class Environment {
 public:
  Environment(std::initializer_list<std::pair<const char*, const char*>> variables) {
    for (const auto& [name, value] : variables) {
      setenv(name, value, 1);
      names_.push_back(name);
    }
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  ~Environment() {
    for (const char* const name : names_) unsetenv(name);
  }

 private:
  std::vector<const char*> names_;
};

TEST(Settings, ComeFromTheEnvironment) {
  const Environment environment{{"EMU_SCHEDULE", "random:17"}, {"EMU_CHECK", "1"},
                                {"EMU_DEVICE_BYTES", "1000"},  {"EMU_GPUS", "3"},
                                {"EMU_NO_DRIVER", "1"},        {"EMU_TIMEOUT", "1.5"},
                                {"EMU_ORDER", "shuffled:5"},   {"EMU_MULTIPROCESSORS", "7"}};
  const Config found = config_from_environment();
  EXPECT_EQ(found.schedule, Schedule::random);
  EXPECT_EQ(found.seed, 17u);
  EXPECT_TRUE(found.race);
  EXPECT_EQ(found.device_bytes, 1000u);
  EXPECT_EQ(found.gpus, 3);
  EXPECT_FALSE(found.has_driver);
  EXPECT_EQ(found.timeout_s, 1.5);
  EXPECT_EQ(found.multiprocessors, 7);
  const Policy order = policy_from_environment();
  EXPECT_EQ(order.order, Order::shuffled);
  EXPECT_EQ(order.seed, 5u);
}

TEST(Settings, ASingleGpuIsTheRanksOwnUnlessItsBusIsGiven) {
  const Environment rank{{"OMPI_COMM_WORLD_LOCAL_RANK", "3"}};
  EXPECT_EQ(config_from_environment().first_bus, 4);
  {
    const Environment several{{"EMU_GPUS", "4"}};
    EXPECT_EQ(config_from_environment().first_bus, 1);
  }
  const Environment shared{{"EMU_PCI_BUS", "1"}};
  EXPECT_EQ(config_from_environment().first_bus, 1);
}

TEST(Settings, AFailureMayBeOfOneRank) {
  {
    const Environment environment{{"EMU_FAIL", "ncclAllReduce:5"}};
    EXPECT_EQ(config_from_environment().failure.call, "ncclAllReduce");
    EXPECT_EQ(config_from_environment().failure.number, 5);
  }
  const Environment environment{{"EMU_FAIL", "cudaMalloc:1@2"}, {"OMPI_COMM_WORLD_RANK", "2"}};
  EXPECT_EQ(config_from_environment().failure.number, 1);
  setenv("OMPI_COMM_WORLD_RANK", "1", 1);
  EXPECT_EQ(config_from_environment().failure.number, 0);
}

using WrongSettings = ::testing::Test;

TEST(WrongSettings, EndTheProgram) {
  for (const auto& [name, value] : {std::pair{"EMU_SCHEDULE", "sometimes"},
                                    {"EMU_SCHEDULE", "random:"},
                                    {"EMU_CHECK", "yes"},
                                    {"EMU_GPUS", "many"},
                                    {"EMU_FAIL", "cudaMalloc"}}) {
    const Environment environment{{name, value}};
    EXPECT_EXIT(config_from_environment(), ::testing::ExitedWithCode(2), name);
  }
  const Environment environment{{"EMU_ORDER", "backwards"}};
  EXPECT_EXIT(policy_from_environment(), ::testing::ExitedWithCode(2), "EMU_ORDER");
}

TEST(Findings, ThatNobodyTookFailTheProgram) {
  EXPECT_EXIT(
      {
        report("something is wrong");
        std::exit(0);
      },
      ::testing::ExitedWithCode(99), "something is wrong");
}

TEST(Findings, ThatWereTakenDoNot) {
  EXPECT_EXIT(
      {
        report("something is wrong");
        take_reports();
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace emu::testing
