// What launchers' variables lead to; the environments are those that mpirun and srun set.
#include "comm/launch.hpp"

#include <gmock/gmock.h>

#include <map>

#include "cartan/core/error.hpp"

namespace cartan::comm {
namespace {

Environment pretend(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

TEST(Launch, SrunThatStartsSingletonsIsRefusedWithTheHint) {
  const auto srun = pretend({{"SLURM_NTASKS", "4"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "2"}});
  try {
    refuse_singletons(srun, 1);
    FAIL() << "accepted";
  } catch (const EnvironmentError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("started 4 tasks, but MPI sees 1"));
    EXPECT_THAT(error.what(), testing::HasSubstr("srun --mpi=pmix"));
    EXPECT_THAT(error.what(), testing::HasSubstr("srun --mpi=list"));
  }
  EXPECT_NO_THROW(refuse_singletons(srun, 4));
}

TEST(Launch, SrunWithoutPmixIsRefusedBeforeMpiStarts) {
  const std::map<std::string, std::string> srun{{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "1"}};
  EXPECT_THROW(refuse_launch_without_pmi(pretend(srun)), EnvironmentError);
  for (const char* name : {"PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_SIZE"}) {
    auto with = srun;
    with.emplace(name, "1");
    EXPECT_NO_THROW(refuse_launch_without_pmi(pretend(with))) << name;
  }
  EXPECT_NO_THROW(refuse_launch_without_pmi(pretend({{"SLURM_STEP_NUM_TASKS", "1"}})));
  EXPECT_NO_THROW(refuse_launch_without_pmi(pretend({{"SLURM_NTASKS", "4"}})));
}

TEST(Launch, PmiSizeBeyondTheWorldIsRefused) {
  EXPECT_THROW(refuse_singletons(pretend({{"PMI_SIZE", "2"}}), 1), EnvironmentError);
  EXPECT_NO_THROW(refuse_singletons(pretend({{"PMI_SIZE", "2"}}), 2));
}

TEST(Launch, OneRankByMpirunInsideALargerAllocationIsFine) {
  EXPECT_NO_THROW(refuse_singletons(
      pretend({{"SLURM_NTASKS", "4"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"OMPI_COMM_WORLD_SIZE", "1"}}), 1));
}

TEST(Launch, APlainProgramInABatchScriptIsFine) {
  EXPECT_NO_THROW(refuse_singletons(pretend({{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}}), 1));
  EXPECT_NO_THROW(refuse_singletons(pretend({}), 1));
}

TEST(Launch, ValuesThatAreNoNumbersAreIgnored) {
  EXPECT_NO_THROW(refuse_singletons(pretend({{"SLURM_STEP_NUM_TASKS", "many"}, {"PMI_SIZE", ""}}), 1));
}

TEST(Launch, RanksOnTheNodeComeFromWhoeverStartedThem) {
  EXPECT_EQ(expected_ranks_on_node(pretend({})), 1);
  EXPECT_EQ(
      expected_ranks_on_node(pretend({{"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}, {"SLURM_NTASKS_PER_NODE", "8"}})),
      3);
  EXPECT_EQ(expected_ranks_on_node(pretend({{"SLURM_STEP_TASKS_PER_NODE", "2(x3),5"}})), 5);
  EXPECT_EQ(expected_ranks_on_node(pretend({{"SLURM_NTASKS_PER_NODE", "8"}})), 8);
}

TEST(Launch, MoreRanksTimesThreadsThanCpusIsCrowded) {
  const auto four_ranks = pretend({{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}});
  EXPECT_TRUE(is_crowded(four_ranks, 2));
  EXPECT_FALSE(is_crowded(four_ranks, 4));
  const auto two_threads = pretend({{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}, {"OMP_NUM_THREADS", "2"}});
  EXPECT_TRUE(is_crowded(two_threads, 7));
  EXPECT_FALSE(is_crowded(two_threads, 8));
}

}  // namespace
}  // namespace cartan::comm
