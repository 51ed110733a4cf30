// Keys nccl.* and the environment that NCCL reads.
#include "cartan/comm/nccl_environment.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>

namespace cartan::comm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string& value_of(NcclConfig& config, std::string_view key) {
  const auto keys = nccl_keys();
  const auto found = std::find_if(keys.begin(), keys.end(), [&](const NcclKey& k) { return k.key == key; });
  if (found == keys.end()) throw std::logic_error("no such key");
  return config.values[static_cast<std::size_t>(found - keys.begin())];
}

std::string text_of(const std::vector<NcclSetting>& settings) {
  std::string text;
  for (const NcclSetting& s : settings) text += s.name + "=" + s.value + " from " + s.source + "; ";
  return text;
}

/// Without what the machine has.
class NcclVariables : public ::testing::Test {
 protected:
  NcclVariables() {
    for (const NcclSetting& setting : NcclEnvironment({}).settings()) unsetenv(setting.name.c_str());
  }
  ~NcclVariables() override {
    for (const char* name : {"NCCL_DEBUG", "NCCL_IB_HCA", "NCCL_FROM_FILE"}) unsetenv(name);
  }
  std::vector<std::string> problems_of(std::string_view key, const std::string& value) {
    NcclConfig config;
    value_of(config, key) = value;
    Problems problems;
    check(config, problems);
    return problems.lines();
  }
};

TEST_F(NcclVariables, NothingIsSetUnlessAsked) {
  const NcclEnvironment environment({});
  EXPECT_THAT(environment.settings(), IsEmpty());
}

TEST_F(NcclVariables, AKeyBecomesItsVariableForAsLongAsTheObjectLives) {
  NcclConfig config;
  value_of(config, "ib-disable") = "1";
  {
    const NcclEnvironment environment(config);
    EXPECT_STREQ(std::getenv("NCCL_IB_DISABLE"), "1");
    EXPECT_EQ(text_of(environment.settings()), "NCCL_IB_DISABLE=1 from nccl.ib-disable; ");
  }
  EXPECT_EQ(std::getenv("NCCL_IB_DISABLE"), nullptr);
}

TEST_F(NcclVariables, TheEnvironmentWins) {
  NcclConfig config;
  value_of(config, "debug") = "INFO";
  value_of(config, "buffsize") = "8388608";
  setenv("NCCL_DEBUG", "WARN", 1);
  setenv("NCCL_IB_HCA", "mlx5_0", 1);
  {
    const NcclEnvironment environment(config);
    setenv("NCCL_FROM_FILE", "1", 1);  // as NCCL does with what its file says
    EXPECT_EQ(text_of(environment.settings()),
              "NCCL_BUFFSIZE=8388608 from nccl.buffsize; NCCL_DEBUG=WARN from environment; "
              "NCCL_FROM_FILE=1 from NCCL's configuration file; NCCL_IB_HCA=mlx5_0 from environment; ");
  }
  EXPECT_STREQ(std::getenv("NCCL_DEBUG"), "WARN");
}

TEST_F(NcclVariables, ValuesThatNcclDoesNotHaveAreNamed) {
  EXPECT_THAT(problems_of("ib-disable", "yes"), ElementsAre("nccl.ib-disable = yes: use one of 0, 1"));
  EXPECT_THAT(problems_of("debug", "info"), ElementsAre(HasSubstr("VERSION, WARN, INFO, TRACE")));
  for (const char* value : {"0", "23", "1s", "-1", "4.5", "99999999999999999999"})
    EXPECT_THAT(problems_of("ib-timeout", value),
                ElementsAre(std::string("nccl.ib-timeout = ") + value + ": use a whole number from 1 to 22"));
  for (const auto& [key, value] : {std::pair{"ib-timeout", "22"},
                                   {"ib-timeout", "1"},
                                   {"net-gdr-level", "PHB"},
                                   {"algo", "^Tree"},
                                   {"cross-nic", "2"},
                                   {"socket-ifname", "^lo,docker"}})
    EXPECT_THAT(problems_of(key, value), IsEmpty()) << key;
}

TEST_F(NcclVariables, EveryKeyIsNamedAsItsVariable) {
  for (const NcclKey& key : nccl_keys()) {
    std::string name = "NCCL_" + std::string(key.key);
    std::transform(name.begin(), name.end(), name.begin(),
                   [](char c) { return c == '-' ? '_' : static_cast<char>(std::toupper(c)); });
    EXPECT_EQ(name, key.variable);
    EXPECT_FALSE(key.help.empty());
  }
}

TEST_F(NcclVariables, TheLibraryKnowsEveryVariable) {
  std::ifstream file(NCCL_LIBRARY, std::ios::binary);
  if (!file) GTEST_SKIP() << "no NCCL here";
  const std::string library{std::istreambuf_iterator<char>(file), {}};
  for (const NcclKey& key : nccl_keys())
    EXPECT_NE(library.find(std::string(key.variable) + '\0'), library.npos) << key.variable;
  EXPECT_EQ(library.find(std::string("NCCL_IB_ENABLE") + '\0'), library.npos) << "this test finds anything";
}

TEST_F(NcclVariables, TheTextIsAShells) {
  const std::vector<NcclSetting> settings{{"NCCL_DEBUG", "WARN", "environment"},
                                          {"NCCL_DEBUG_FILE", "a 'b'", "nccl.debug-file"}};
  EXPECT_EQ(to_text(settings),
            "# NCCL's variables on rank 0, and where each came from\n# environment\nNCCL_DEBUG='WARN'\n"
            "# nccl.debug-file\nNCCL_DEBUG_FILE='a '\\''b'\\'''\n");
}

}  // namespace
}  // namespace cartan::comm
