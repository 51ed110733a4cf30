// What the doctor finds on this machine, and where something is wrong.
#include "cartan/tools/doctor.hpp"

#include <gmock/gmock.h>

#include <filesystem>

#include "cartan/comm/mesh_groups.hpp"
#include "cartan/core/narrow.hpp"
#include "support/mpi_session.hpp"
#include "support/test_device.hpp"
#include "tools/file_system.hpp"
#include "tools/rank_texts.hpp"

namespace cartan::tools {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class Doctor : public ::testing::Test {
 protected:
  Doctor() {
    config_.run.device = cartan::testing::test_device_name();
    config_.run.threads = 1;
    // The same on all ranks, and there for none.
    config_.run.dir = std::filesystem::temp_directory_path() / "cartan-doctor-test" / "not" / "there";
  }
  std::vector<Finding> examine() { return tools::examine(config_, session_); }
  Finding found(const std::string& subject) {
    for (const Finding& finding : examine())
      if (finding.subject == subject) return finding;
    ADD_FAILURE() << "nothing about " << subject;
    return {};
  }

  comm::Session& session_ = testing::session();
  train::Config config_;
};

TEST_F(Doctor, FindsAGoodMachineFit) {
  for (const Finding& finding : examine())
    EXPECT_NE(finding.health, Health::bad) << finding.subject << ": " << finding.text;
  EXPECT_THAT(found("MPI").text, StartsWith(fmt::format("{} rank", session_.world_size())));
  EXPECT_THAT(found("MPI").text, HasSubstr(fmt::format("{} on {}", session_.world_size(), session_.host())));
  EXPECT_THAT(found("device").text, StartsWith(config_.run.device + ": "));
  EXPECT_THAT(found("CPUs").text, HasSubstr("1 of the "));
}

TEST_F(Doctor, LeavesNothingBehind) {
  const auto folder = std::filesystem::temp_directory_path();
  examine();

  EXPECT_FALSE(std::filesystem::exists(folder / "cartan-doctor-test"));
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    EXPECT_NE(entry.path().filename().string().find(".cartan-doctor"), 0u) << entry.path();
}

TEST_F(Doctor, SaysWhichVariablesOfNcclAreInForceAndWhatTheyCost) {
  if (cartan::testing::on_cpu()) GTEST_SKIP() << "builds without CUDA know no NCCL";
  setenv("NCCL_P2P_DISABLE", "1", 1);
  const Finding finding = found("NCCL");
  unsetenv("NCCL_P2P_DISABLE");
  EXPECT_EQ(finding.health, Health::notable);
  EXPECT_THAT(finding.text, HasSubstr("NCCL_P2P_DISABLE=1 (environment)"));
  EXPECT_THAT(finding.advice, HasSubstr("unset it"));
  EXPECT_EQ(found("NCCL").health, Health::good);
}

TEST_F(Doctor, NotesMoreThreadsThanCpus) {
  config_.run.threads = 4096;
  const Finding finding = found("CPUs");
  EXPECT_EQ(finding.health, Health::notable);
  EXPECT_THAT(finding.advice, HasSubstr("run.threads"));
}

TEST_F(Doctor, FindsARunDirectoryThatCannotBe) {
  config_.run.dir = "/proc/cartan";
  const Finding finding = found("run.dir");
  EXPECT_EQ(finding.health, Health::bad);
  EXPECT_THAT(finding.text, HasSubstr("/proc"));
  EXPECT_THAT(finding.advice, HasSubstr("may write"));
}

TEST(Summary, NamesTheRanksWhereTheyDiffer) {
  EXPECT_EQ(summary({"a"}), "a");
  EXPECT_EQ(summary({"a", "a", "a"}), "a");
  EXPECT_EQ(summary({"a", "b", "a"}), "a (ranks 0, 2), b (rank 1)");
  EXPECT_EQ(summary(Texts(20, "a")), "a");
  Texts many(20, "a");
  many[3] = "b";
  EXPECT_EQ(summary(many), "a (ranks 0, 1, 2, 4, 5, 6, 7, 8 and 11 more), b (rank 3)");
}

TEST_F(Doctor, GathersTextsOfAllLengths) {
  comm::MeshShape shape;
  shape.dp = session_.world_size();
  comm::Mesh mesh(session_, shape, device::DeviceKind::cpu);
  const Texts texts = gather(mesh.world(), std::string(narrow<std::size_t>(session_.rank()), 'x'));
  for (std::size_t rank = 0; rank < texts.size(); ++rank) EXPECT_EQ(texts[rank], std::string(rank, 'x'));
  const Texts failed = failures(mesh.world(), [&] {
    if (session_.rank() == 0) throw IoError("no disk");
  });
  ASSERT_EQ(failed.size(), texts.size());
  EXPECT_EQ(failed.front(), "no disk");
  EXPECT_TRUE(failures(mesh.world(), [] {}).empty());
}

}  // namespace
}  // namespace cartan::tools
