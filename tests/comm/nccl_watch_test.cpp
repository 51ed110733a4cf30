// The thread that watches over NCCL communicators: whatever goes wrong, on whichever rank, no wait is for
// ever and every thread is told the first failure.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "cartan/comm/mesh_groups.hpp"
#include "cartan/core/clock.hpp"
#include "comm/nccl/nccl_groups.hpp"
#include "comm/nccl/watchdog.hpp"
#include "emu/runtime.h"
#include "support/mpi_session.hpp"

namespace cartan::comm {
namespace {

using device::MemoryKind;
using ::testing::AllOf;
using ::testing::HasSubstr;

device::Device& gpu() {
  static const auto device = device::make_device(device::DeviceKind::cuda, {});
  return *device;
}

template <class Done>
bool happens(Done&& done) {
  const auto begin = Clock::now();
  while (!done() && seconds_since(begin) < 10) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return done();
}

/// What a watchdog did.
struct Watched {
  std::shared_ptr<FirstFailure> failure = std::make_shared<FirstFailure>();
  std::atomic<int> looks = 0, abandoned = 0, given_up = 0;
  std::atomic<bool> fails = false;
  Watchdog::Duties duties() {
    return {[this] {
              ++looks;
              if (fails) throw PeerError("broken");
            },
            [this] { abandoned += failure->happened() ? 1 : 100; },
            [this](std::exception_ptr) { ++given_up; }};
  }
};

TEST(Watchdog, LooksUntilItIsNotNeeded) {
  Watched watched;
  gpu();
  {
    const Watchdog watchdog(watched.duties(), watched.failure, {.interval_s = 0.001});
    EXPECT_TRUE(happens([&] { return watched.looks > 2; }));
  }
  const int looks = watched.looks;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(watched.looks, looks);
  EXPECT_EQ(watched.abandoned, 0);
  EXPECT_NO_THROW(watched.failure->check());
}

TEST(Watchdog, KeepsTheFailureThenEndsTheWaitsOnce) {
  Watched watched;
  gpu();
  {
    const Watchdog watchdog(watched.duties(), watched.failure, {.interval_s = 0.001, .grace_s = 100});
    watched.fails = true;
    EXPECT_TRUE(happens([&] { return watched.abandoned > 0; }));
    EXPECT_THROW(watched.failure->check(), PeerError);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(watched.abandoned, 1) << "after the failure is known";
  EXPECT_EQ(watched.given_up, 0) << "it ended in time";
  watched.failure->note(std::make_exception_ptr(DataError("a consequence")));
  EXPECT_THROW(watched.failure->check(), PeerError) << "the first one stays";
}

TEST(Watchdog, GivesUpAMainThreadThatDoesNotEnd) {
  Watched watched;
  gpu();
  const Watchdog watchdog(watched.duties(), watched.failure, {.interval_s = 0.001, .grace_s = 0.02});
  watched.fails = true;
  EXPECT_TRUE(happens([&] { return watched.given_up > 0; }));
}

TEST(Watchdog, EndsAtOnceWhateverItsInterval) {
  Watched watched;
  gpu();
  const auto begin = Clock::now();
  { const Watchdog watchdog(watched.duties(), watched.failure, {.interval_s = 1000}); }
  EXPECT_LT(seconds_since(begin), 5.0);
  EXPECT_EQ(watched.looks, 0);
}

class NcclWatch : public ::testing::Test {
 protected:
  NcclWatch() : before_(emu::config) {
    gpu();
    emu::config.timeout_s = 20;
    emu::config.schedule = emu::Schedule::lazy;  // a call fails after it was made
    stream_ = gpu().make_stream("test");
    in_ = gpu().allocate(64, MemoryKind::workspace, "in");
    out_ = gpu().allocate(64 * static_cast<std::size_t>(size_), MemoryKind::workspace, "out");
    begin_ = Clock::now();
  }
  ~NcclWatch() override {
    EXPECT_LT(seconds_since(begin_), 15.0);
    emu::config = before_;
    MPI_Barrier(MPI_COMM_WORLD);
  }
  void watch(double timeout_s) {
    NcclOptions options;
    options.room_bytes = 1 << 16;
    options.watch_interval_s = 0.02;
    options.call_timeout_s = timeout_s;
    options.grace_s = 100;
    options.give_up = [](std::exception_ptr) { ADD_FAILURE() << "nobody ended"; };
    groups_ = make_nccl_groups(options);
  }
  std::unique_ptr<Communicator> make(const std::string& name, NcclUse use = NcclUse::collectives) {
    MpiOptions options;
    options.spin = false;
    return groups_->make(duplicate(MPI_COMM_WORLD, name), name, options, use);
  }
  device::Event gather(Communicator& comm) {
    return comm.all_gather({in_.as<const std::byte>(), 64}, {out_.as<std::byte>(), out_.size_bytes()},
                           *stream_);
  }
  /// Whatever is called after a failure throws it.
  template <class Call>
  std::string failure_of(Call&& call) {
    try {
      call();
    } catch (const PeerError& error) {
      return error.what();
    }
    return "none";
  }

  emu::Config before_;
  int rank_ = testing::session().rank(), size_ = testing::session().world_size();
  Clock::time_point begin_;
  std::unique_ptr<device::Stream> stream_;
  device::Buffer in_, out_;
  std::unique_ptr<NcclGroups> groups_;
};

TEST_F(NcclWatch, ABrokenConnectionEndsTheWaitsOfEveryRankAndIsNamed) {
  watch(1.5);
  const auto comm = make("tp[pp=0]");
  gather(*comm).wait();
  const std::uint64_t number = comm->calls();
  if (rank_ == 0) emu::config.failure = {"ncclAsync", 1};
  const device::Event never = gather(*comm);
  never.wait();
  const std::string call = fmt::format("all_gather #{} on tp[pp=0], rank {} of {}", number, rank_, size_);
  const auto expected = AllOf(HasSubstr(call), HasSubstr(rank_ == 0 ? "remote" : "is not over after 1.5 s"));
  EXPECT_THAT(failure_of([&] { comm->barrier(); }), expected);
  EXPECT_THAT(failure_of([&] { comm->max(1); }), expected);
  EXPECT_THAT(failure_of([&] { gather(*comm); }), expected);
  EXPECT_THAT(failure_of([&] { groups_->poll(); }), expected);
}

TEST_F(NcclWatch, AFailureEndsAWaitForMpiToo) {
  watch(0);
  // MPI goes on with what rank 0 gave up: the communicator may not be freed before MPI's end.
  static std::unique_ptr<Communicator> comm;
  comm = make("tp");
  if (rank_ != 0) {
    MPI_Barrier(MPI_COMM_WORLD);
    comm->barrier();  // too late for rank 0, but MPI wants to end what began
    groups_->abort();
    return;
  }
  emu::config.failure = {"ncclAsync", 1};
  const device::Event never = gather(*comm);
  EXPECT_FALSE(never.done());
  EXPECT_THAT(failure_of([&] { comm->barrier(); }), HasSubstr("all_gather"));
  never.wait();
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST_F(NcclWatch, ARankThatStopsIsNoticedByTheOthers) {
  watch(0.5);
  const auto comm = make("dp");
  if (rank_ == 0) {
    MPI_Barrier(MPI_COMM_WORLD);
    return;
  }
  gather(*comm).wait();
  EXPECT_THAT(failure_of([&] { gather(*comm); }),
              HasSubstr(fmt::format("on dp, rank {} of {}, is not over after 0.5 s", rank_, size_)));
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST_F(NcclWatch, ACallThatWaitsBehindOthersIsNotOverdue) {
  // The second call is made at once, but the GPU begins it when the first one is over.
  watch(0.6);
  const auto first = make("first"), second = make("second");
  const auto be_late = [&] {
    if (rank_ == 0) std::this_thread::sleep_for(std::chrono::milliseconds(400));
  };
  be_late();
  const device::Event begun = gather(*first);
  if (rank_ == 0) begun.wait();
  be_late();
  gather(*second).wait();
  EXPECT_NO_THROW(second->barrier());
}

TEST_F(NcclWatch, AFailureOfOneCommunicatorEndsTheOthers) {
  watch(0);
  const auto broken = make("broken"), other = make("other");
  const std::string call = fmt::format("all_gather #{} on broken", broken->calls());
  const auto stream = gpu().make_stream("second");
  if (rank_ == 0) {
    emu::config.failure = {"ncclAsync", 1};
    const device::Event never = gather(*broken);
    never.wait();
    EXPECT_THAT(failure_of([&] { gather(*other); }), HasSubstr(call));
  }
  MPI_Barrier(MPI_COMM_WORLD);
  groups_->abort();
}

TEST_F(NcclWatch, AMessageRoundARingIsNamedByTheRing) {
  watch(0);
  const auto ring = make("pp", NcclUse::ring);
  if (rank_ == 0) {
    emu::config.failure = {"ncclAsync", 1};
    const auto data = gpu().allocate(64, MemoryKind::workspace, "data");
    const std::string call = fmt::format("send #{} on pair", ring->calls());
    ring->send({data.as<const std::byte>(), 64}, 1, *stream_).wait();
    EXPECT_THAT(failure_of([&] { ring->barrier(); }), HasSubstr(call));
  }
  MPI_Barrier(MPI_COMM_WORLD);
  groups_->abort();
}

TEST_F(NcclWatch, ARankThatLeavesByAnExceptionDoesNotWaitForItsGpu) {
  Mesh mesh(testing::session(), {1, size_, 1, 1}, device::DeviceKind::cuda);
  const auto leave = [&] {
    const auto stream = gpu().make_stream("communication");  // which finishes its work when it goes
    const AbandonOnFailure abandon(mesh);
    if (rank_ != 0)
      mesh.data_plane().all_gather({in_.as<const std::byte>(), 64}, {out_.as<std::byte>(), out_.size_bytes()},
                                   *stream);
    throw DataError("a file is broken");
  };
  EXPECT_THROW(leave(), DataError);
  EXPECT_THROW(gather(mesh.data_plane()), PeerError) << "the mesh is given up";
}

TEST_F(NcclWatch, NothingIsAbandonedInGoodOrder) {
  Mesh mesh(testing::session(), {1, size_, 1, 1}, device::DeviceKind::cuda);
  { const AbandonOnFailure abandon(mesh); }
  try {
    throw DataError("handled");
  } catch (const DataError&) {
    const AbandonOnFailure abandon(mesh);
  }
  gather(mesh.data_plane()).wait();
  EXPECT_NO_THROW(mesh.poll());
}

}  // namespace
}  // namespace cartan::comm
