// The checkpoints of a run directory: listing, deleting; full disks; a writer that is killed.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <random>
#include <thread>

#include "checkpoint_data.hpp"

namespace cartan::store {
namespace {

using namespace cartan::testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<TensorInfo> kFew{{"model/a", DType::f32, {10}}};

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(RunDirectory, ListsStepsInOrder) {
  const ScratchFolder run;
  EXPECT_TRUE(checkpoint_steps(run.path()).empty());
  for (const Index step : {100, 20, 3}) write_alone(checkpoint_path(run.path(), step), step, 1, kFew);
  for (const char* name : {"step-7.h5.tmp.host.1", "step-.h5", "step-007.h5", "step-8.h5x", "step--1.h5",
                           "step-1e3.h5", "notes"})
    std::ofstream(run / "checkpoints" / name) << "x";
  EXPECT_THAT(checkpoint_steps(run.path()), ElementsAre(3, 20, 100));
  EXPECT_EQ(checkpoint_path("run", 100).string(), "run/checkpoints/step-100.h5");
}

TEST(RunDirectory, ListingReportsWhatIsNoFolder) {
  const ScratchFolder run;
  std::ofstream(run / "checkpoints") << "x";
  EXPECT_THAT(message_of<IoError>([&] { checkpoint_steps(run.path()); }), HasSubstr("checkpoints"));
}

TEST(RunDirectory, KeepsTheNewest) {
  const ScratchFolder run;
  for (Index step = 1; step <= 12; ++step) write_alone(checkpoint_path(run.path(), step), step, 1, kFew);
  std::ofstream(run / "checkpoints/notes") << "x";
  remove_old(run.path(), 0);
  EXPECT_EQ(checkpoint_steps(run.path()).size(), 12u);
  remove_old(run.path(), 20);
  EXPECT_EQ(checkpoint_steps(run.path()).size(), 12u);
  remove_old(run.path(), 3);
  EXPECT_THAT(checkpoint_steps(run.path()), ElementsAre(10, 11, 12));
  remove_old(run.path(), 1);
  EXPECT_THAT(names_in(run / "checkpoints"), ElementsAre("notes", "step-12.h5"));
  remove_old(run / "none", 1);
}

TEST(RunDirectory, DeletesTemporaryFilesOfDeadWritersOnly) {
  const ScratchFolder run;
  std::filesystem::create_directory(run / "checkpoints");
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const pid_t dead = ::fork();
  if (dead == 0) ::_exit(0);
  ::waitpid(dead, nullptr, 0);
  const auto put = [&](const std::string& who) {
    const auto path = run / ("checkpoints/step-1.h5.tmp." + who);
    std::ofstream(path) << "x";
    return path;
  };
  const auto of_dead = put(fmt::format("{}.{}", host.data(), dead));
  const auto of_living = put(fmt::format("{}.{}", host.data(), ::getpid()));
  const auto elsewhere = put("other.node.17"), elsewhere_old = put("other.node.18"), strange = put("17");
  const auto now = std::filesystem::file_time_type::clock::now();
  std::filesystem::last_write_time(elsewhere_old, now - std::chrono::hours(2));
  remove_old(run.path(), 0);
  EXPECT_FALSE(std::filesystem::exists(of_dead));
  EXPECT_TRUE(std::filesystem::exists(of_living));
  EXPECT_TRUE(std::filesystem::exists(elsewhere));
  EXPECT_FALSE(std::filesystem::exists(elsewhere_old));
  EXPECT_TRUE(std::filesystem::exists(strange));
}

/// A disk of a few MB on a folder of its own.
class SmallDisk {
 public:
  explicit SmallDisk(const char* size)
      : mounted_(::mount("tmpfs", folder_.path().c_str(), "tmpfs", 0, size) == 0) {}
  ~SmallDisk() {
    if (mounted_) ::umount2(folder_.path().c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  bool mounted() const { return mounted_; }
  const std::filesystem::path& path() const { return folder_.path(); }

 private:
  ScratchFolder folder_;
  bool mounted_;
};

TEST(RunDirectory, AFullDiskLeavesTheOlderCheckpoint) {
  const SmallDisk disk("size=5m");  // a checkpoint has 3 MiB
  if (!disk.mounted()) GTEST_SKIP() << "may not mount a small disk";
  write_alone(checkpoint_path(disk.path(), 1), 1);
  const auto message = message_of<IoError>([&] { write_alone(checkpoint_path(disk.path(), 2), 2); });
  EXPECT_THAT(message, ::testing::AllOf(HasSubstr("step-2.h5"), HasSubstr("No space left on device")));
  EXPECT_THAT(names_in(disk.path() / "checkpoints"), ElementsAre("step-1.h5"));
  expect_content(checkpoint_path(disk.path(), 1), sample_tensors());
}

TEST(RunDirectory, AnUnwritableFolderIsNamed) {
  if (::geteuid() == 0) {
    // Root may write everywhere but into /proc.
    EXPECT_THAT(message_of<IoError>([] { write_alone("/proc/checkpoints/step-1.h5", 1, 1, kFew); }),
                HasSubstr("/proc/checkpoints"));
    return;
  }
  const ScratchFolder run;
  std::filesystem::permissions(run.path(),
                               std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  EXPECT_THAT(message_of<IoError>([&] { write_alone(checkpoint_path(run.path(), 1), 1, 1, kFew); }),
              HasSubstr(run.path().string()));
}

TEST(RunDirectory, AKilledWriterLeavesAGoodCheckpoint) {
  const ScratchFolder run;
  const auto comm = comm::make_local_communicator("alone");
  write_alone(checkpoint_path(run.path(), 1), 1);
  std::mt19937 random(7);
  Index newest = 1;
  int cut_short = 0;
  // Where starting a process is slow (sanitizers, a busy machine) longer delays and more trials hit a save.
  for (int trial = 0; trial < 25 || (cut_short == 0 && trial < 200); ++trial) {
    const pid_t writer = ::fork();
    if (writer == 0) {
      for (Index step = newest + 1;; ++step) write_alone(checkpoint_path(run.path(), step), step);
    }
    std::this_thread::sleep_for(
        std::chrono::microseconds(random() % (40000u * (1u + static_cast<unsigned>(trial) / 10u))));
    ::kill(writer, SIGKILL);
    int status = 0;
    ::waitpid(writer, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);

    for (const auto& name : names_in(run / "checkpoints"))
      cut_short += name.find(".tmp.") != std::string::npos;
    const auto found = find_newest_good(run.path(), *comm);
    ASSERT_TRUE(found.has_value());
    EXPECT_THAT(found->rejected, ::testing::IsEmpty());
    EXPECT_GE(found->step, newest);
    newest = found->step;
    EXPECT_EQ(CheckpointReader(found->path).state(), sample_state(newest));
    remove_old(run.path(), 2);
    for (const auto& name : names_in(run / "checkpoints")) EXPECT_THAT(name, ::testing::EndsWith(".h5"));
  }
  EXPECT_GT(cut_short, 0);  // the test did hit saves in the middle
}

}  // namespace
}  // namespace cartan::store
