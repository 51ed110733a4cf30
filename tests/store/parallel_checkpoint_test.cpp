// Checkpoints written by several ranks: the same file whoever holds what; failures of one rank reach all;
// saves beside the training.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>

#include <fstream>
#include <thread>

#include "cartan/core/file.hpp"
#include "checkpoint_data.hpp"
#include "comm/mpi/mpi_communicator.hpp"
#include "support/mpi_session.hpp"
#include "support/test_device.hpp"

namespace cartan::store {
namespace {

using namespace cartan::testing;
using ::testing::HasSubstr;

comm::Mesh& mesh() {
  static comm::Mesh instance(testing::session(), {.pp = 1, .dp = 0, .cp = 1, .tp = 1});
  return instance;
}
comm::Communicator& world() { return mesh().world(); }

class ParallelCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    prepare_environment();  // read when the first file is opened
    std::array<char, 256> name{};
    if (world().rank() == 0) {
      folder_.emplace();
      folder_->path().string().copy(name.data(), name.size() - 1);
    }
    world().broadcast_host(std::as_writable_bytes(std::span(name)), 0);
    path_ = name.data();
  }
  void TearDown() override { world().barrier(); }
  std::filesystem::path file(const std::string& name) const { return path_ / name; }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
  }
  bool root() const { return world().rank() == 0; }

  WriteReport write(const std::string& name, Deal how, std::uint32_t seed = 1,
                    const WriteOptions& options = {}) {
    auto data = all_bytes(tensors_, seed);
    const auto slabs = deal(tensors_, data, how, world().rank(), world().size());
    return write_checkpoint(file(name), sample_state(7), tensors_, slabs, world(), options);
  }

  const std::vector<TensorInfo> tensors_ = sample_tensors();
  std::filesystem::path path_;

 private:
  std::optional<ScratchFolder> folder_;
};

TEST_F(ParallelCheckpoint, HasTheSameBytesHoweverItIsDealtOut) {
  if (root()) write_alone(file("alone.h5"), 7);
  for (const Deal how : {Deal::even, Deal::odd, Deal::last_has_all, Deal::crumbs, Deal::none_at_first}) {
    const WriteReport report = write("together.h5", how);
    EXPECT_EQ(report.collective, world().size() > 1);
    expect_content(file("together.h5"), tensors_);
    EXPECT_EQ(report.bytes, std::filesystem::file_size(file("together.h5")));
    if (root()) {
      EXPECT_TRUE(read_file(file("alone.h5")) == read_file(file("together.h5"))) << static_cast<int>(how);
    }
    world().barrier();
  }
  if (root()) {
    EXPECT_EQ(files(), 2u);
  }
}

/// Two ranks hold crumbs of 38 MB for each owner, more than go in one round.
class ManyFragments : public ParallelCheckpoint {
 protected:
  void SetUp() override {
    ParallelCheckpoint::SetUp();
    if (world().size() != 2) GTEST_SKIP() << "two ranks are enough for a test this large";
    slabs_ = deal(tensors_, data_, Deal::crumbs, world().rank(), 2);
  }

  const std::vector<TensorInfo> tensors_{{"model/a", DType::f32, {19000, 1001}},
                                         {"model/b", DType::f32, {3}}};
  std::vector<std::vector<std::byte>> data_ = all_bytes(tensors_);
  std::vector<Slab> slabs_;
};

TEST_F(ManyFragments, AreWrittenInPlaceInsideANode) {
  write_checkpoint(file("a.h5"), {}, tensors_, slabs_, world(), {});
  if (root()) expect_content(file("a.h5"), tensors_);
}

TEST_F(ManyFragments, AreSentBetweenNodes) {
  comm::MpiCommunicator messages(
      comm::duplicate(reinterpret_cast<MPI_Comm>(comm::native_handle(world())), "messages"), "messages",
      {.force_messages = true});
  write_checkpoint(file("a.h5"), {}, tensors_, slabs_, messages, {});
  if (root()) expect_content(file("a.h5"), tensors_);
}

TEST_F(ManyFragments, NameWhatIsMissingOrDouble) {
  const auto message = [&] {
    return message_of<InternalError>(
        [&] { write_checkpoint(file("a.h5"), {}, tensors_, slabs_, world(), {}); });
  };
  Slab& late = slabs_[slabs_.size() - 10];
  ASSERT_GT(late.count, 1);
  if (!root()) --late.count;
  EXPECT_THAT(message(), HasSubstr("are in no rank's slabs"));
  if (!root()) late.count += 2;
  EXPECT_THAT(message(), HasSubstr("are in several slabs"));
}

TEST_F(ParallelCheckpoint, TakesHintsAndRefusesWrongOnes) {
  EXPECT_NO_THROW(
      write("a.h5", Deal::crumbs, 1, {.io_hints = {"romio_cb_write=enable", "striping_unit=1048576"}}));
  if (root()) expect_content(file("a.h5"), tensors_);
  world().barrier();
  if (world().size() == 1) return;
  EXPECT_THROW(write("a.h5", Deal::even, 1, {.io_hints = {"striping"}}), ConfigError);
}

TEST_F(ParallelCheckpoint, ThrowsEverywhereIfOneRankCannotWrite) {
  write("a.h5", Deal::even, 1);
  // The last rank may not write beyond 1 MB; it holds the end of the file.
  const int last = world().size() - 1;
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  if (world().rank() == last) {
    const rlimit small{1000000, before.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &small);
  }
  const std::string message = message_of<IoError>([&] { write("a.h5", Deal::even, 2); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  EXPECT_THAT(message, HasSubstr("a.h5"));
  const std::string reason =
      world().rank() == last ? "File too large" : fmt::format("failed on rank {}", last);
  EXPECT_THAT(message, HasSubstr(reason));
  world().barrier();
  if (root()) {
    EXPECT_EQ(files(), 1u);
    expect_content(file("a.h5"), tensors_, 1);
  }
}

TEST_F(ParallelCheckpoint, ThrowsEverywhereIfTheFolderCannotBeMade) {
  if (root()) std::ofstream(file("file")) << "in the way";
  world().barrier();
  const std::string message = message_of<IoError>([&] { write("file/a.h5", Deal::even); });
  EXPECT_THAT(message, HasSubstr(file("file").string()));
}

TEST_F(ParallelCheckpoint, NoticesElementsThatNobodyOrTwoRanksHold) {
  auto data = all_bytes(tensors_);
  const auto write_slabs = [&](const std::vector<Slab>& slabs) {
    return message_of<InternalError>(
        [&] { write_checkpoint(file("a.h5"), {}, tensors_, slabs, world(), {}); });
  };
  auto slabs = deal(tensors_, data, Deal::last_has_all, world().rank(), world().size());
  const bool holder = !slabs.empty();
  if (holder) slabs[0].first = 1, --slabs[0].count;
  auto message = write_slabs(slabs);
  if (holder && world().size() == 1) {
    EXPECT_THAT(message, HasSubstr("model/embed.weight, elements [0, 1) are in no"));
  }
  slabs = deal(tensors_, data, Deal::last_has_all, world().rank(), world().size());
  if (root()) slabs.push_back({2, 0, 65536, data[2].data()});
  message = write_slabs(slabs);
  if (root()) {
    EXPECT_THAT(message, HasSubstr("model/layers.0.up.weight, elements [0, 65536) are in several"));
  }
  slabs = deal(tensors_, data, Deal::last_has_all, world().rank(), world().size());
  if (holder) slabs.erase(slabs.begin() + 2);
  message = write_slabs(slabs);
  if (root()) {
    EXPECT_THAT(message, HasSubstr("model/layers.0.up.weight, elements [0, 65536) are in no"));
  }
  EXPECT_FALSE(std::filesystem::exists(file("a.h5")));
}

TEST_F(ParallelCheckpoint, NoticesRanksThatListDifferentTensors) {
  if (world().size() == 1) GTEST_SKIP() << "one rank";
  auto tensors = tensors_;
  if (root()) tensors[0].shape = {301, 257};
  EXPECT_THROW(write_checkpoint(file("a.h5"), {}, tensors, {}, world(), {}), InternalError);
}

TEST_F(ParallelCheckpoint, TheNewestGoodOneIsFoundByAllRanks) {
  EXPECT_FALSE(find_newest_good(path_, world()).has_value());
  for (const Index step : {5, 10, 15, 20}) {
    auto data = all_bytes(tensors_);
    const auto slabs = deal(tensors_, data, Deal::even, world().rank(), world().size());
    write_checkpoint(checkpoint_path(path_, step), sample_state(step), tensors_, slabs, world(), {});
  }
  auto found = find_newest_good(path_, world());
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->step, 20);
  EXPECT_TRUE(found->rejected.empty());
  world().barrier();

  if (root()) {  // a flipped bit that only one rank's part of the verification meets, and a truncation
    std::fstream damaged(checkpoint_path(path_, 20), std::ios::in | std::ios::out | std::ios::binary);
    damaged.seekp(-5, std::ios::end);
    damaged.put('\x55');
    damaged.close();
    std::filesystem::resize_file(checkpoint_path(path_, 15), 100000);
  }
  world().barrier();
  found = find_newest_good(path_, world());
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->step, 10);
  EXPECT_EQ(found->path, checkpoint_path(path_, 10));
  ASSERT_EQ(found->rejected.size(), 2u);
  EXPECT_THAT(found->rejected[0], ::testing::AllOf(HasSubstr("step-20.h5"), HasSubstr("data/counts")));
  EXPECT_THAT(found->rejected[1], ::testing::AllOf(HasSubstr("step-15.h5"), HasSubstr("truncated")));
  world().barrier();

  if (root())
    for (const Index step : {5, 10}) std::filesystem::resize_file(checkpoint_path(path_, step), 0);
  world().barrier();
  const auto message = message_of<DataError>([&] { find_newest_good(path_, world()); });
  EXPECT_THAT(message, ::testing::AllOf(HasSubstr("none of the 4"), HasSubstr("step-5.h5")));
}

class AsyncCheckpoint : public ParallelCheckpoint {
 protected:
  AsyncCheckpoint()
      : device_(cartan::testing::make_test_device(1)),
        writer_(std::in_place, mesh().duplicate(world(), "saves"), *device_, WriteOptions{}) {}

  void save(const std::string& name, std::uint32_t seed) {
    auto data = all_bytes(tensors_, seed);
    writer_->save(file(name), sample_state(7), tensors_,
                  deal(tensors_, data, Deal::odd, world().rank(), world().size()));
    for (auto& tensor : data) std::fill(tensor.begin(), tensor.end(), std::byte{0xff});  // a copy was taken
  }

  std::unique_ptr<device::Device> device_;
  std::optional<AsyncWriter> writer_;
};

TEST_F(AsyncCheckpoint, WritesACopyBesideTheCaller) {
  EXPECT_FALSE(writer_->wait().has_value());
  save("a.h5", 1);
  save("b.h5", 2);
  std::optional<WriteReport> report;
  while (!(report = writer_->poll())) std::this_thread::yield();
  EXPECT_GT(report->bytes, 0u);
  EXPECT_FALSE(writer_->poll().has_value());
  EXPECT_EQ(writer_->wait()->bytes, report->bytes);
  expect_content(file("a.h5"), tensors_, 1);
  expect_content(file("b.h5"), tensors_, 2);
}

TEST_F(AsyncCheckpoint, BooksItsBufferOnce) {
  std::size_t largest = 0;
  auto data = all_bytes(tensors_);
  for (const Slab& slab : deal(tensors_, data, Deal::odd, world().rank(), world().size()))
    largest += static_cast<std::size_t>(slab.count) * size_of(tensors_[slab.tensor].dtype);
  save("a.h5", 1);
  save("b.h5", 2);
  writer_->wait();
  EXPECT_EQ(device_->ledger().peak().of(device::MemoryKind::io), largest);
  writer_.reset();
  EXPECT_EQ(device_->ledger().current().of(device::MemoryKind::io), 0u);
}

TEST_F(AsyncCheckpoint, ThrowsAFailureAtTheNextCall) {
  if (root()) std::ofstream(file("file")) << "in the way";
  world().barrier();
  EXPECT_NO_THROW(save("file/a.h5", 1));
  EXPECT_THROW(save("b.h5", 1), IoError);
  EXPECT_FALSE(std::filesystem::exists(file("b.h5")));
  EXPECT_NO_THROW(save("c.h5", 3));
  writer_->wait();
  expect_content(file("c.h5"), tensors_, 3);
  world().barrier();
  save("file/a.h5", 1);
  EXPECT_THROW(writer_->wait(), IoError);
}

}  // namespace
}  // namespace cartan::store
