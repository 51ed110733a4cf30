// What only communicators over NCCL have: how they connect, fail and end, and the memory that they bring
// along.
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

#include "cartan/comm/mesh_groups.hpp"
#include "cartan/core/clock.hpp"
#include "comm/nccl/nccl_communicator.hpp"
#include "emu/runtime.h"
#include "support/mpi_session.hpp"
#include "support/test_device.hpp"

namespace cartan::comm {
namespace {

using device::MemoryKind;
using ::testing::AllOf;
using ::testing::HasSubstr;

device::Device& gpu() {
  static const auto device = device::make_device(device::DeviceKind::cuda, {});
  return *device;
}

ByteView bytes_of(const device::Buffer& buffer) {
  return {static_cast<std::byte*>(buffer.data()), buffer.size_bytes()};
}

std::vector<float> floats_of(const device::Buffer& buffer) {
  std::vector<float> host(buffer.size_bytes() / sizeof(float));
  gpu().copy_out(host.data(), buffer.data(), buffer.size_bytes(), gpu().compute_stream());
  gpu().compute_stream().synchronize();
  return host;
}

/// The findings that a test asked for, so that they do not count at the end.
std::string findings() {
  std::string all;
  for (const std::string& finding : emu::take_reports()) all += finding + "\n";
  return all;
}

class Nccl : public ::testing::Test {
 protected:
  Nccl() : before_(emu::config) {
    gpu();
    emu::config.timeout_s = 10;
  }
  ~Nccl() override {
    emu::config = before_;
    MPI_Barrier(MPI_COMM_WORLD);
  }
  std::unique_ptr<Communicator> make(NcclUse use, double timeout_s = 30) {
    groups_ = make_nccl_groups({.room_bytes = 1 << 16, .connect_timeout_s = timeout_s});
    MpiOptions options;
    options.spin = false;
    return groups_->make(duplicate(MPI_COMM_WORLD, "tp[pp=0,dp=1,cp=0]"), "tp[pp=0,dp=1,cp=0]", options, use);
  }
  device::Buffer numbers(std::size_t count, float value) {
    device::Buffer buffer = gpu().allocate(count * sizeof(float), MemoryKind::workspace, "numbers");
    const std::vector<float> host(count, value);
    gpu().copy_in(buffer.data(), host.data(), buffer.size_bytes(), *stream_);
    stream_->synchronize();
    return buffer;
  }
  static bool is_alone() { return testing::session().world_size() == 1; }

  emu::Config before_;
  int rank_ = testing::session().rank(), size_ = testing::session().world_size();
  std::unique_ptr<device::Stream> stream_ = gpu().make_stream("test");
  std::unique_ptr<NcclGroups> groups_;
};

TEST_F(Nccl, AGroupConnectsWhenItIsFirstUsed) {
  const auto comm = make(NcclUse::on_demand);
  const auto data = numbers(100, static_cast<float>(rank_ + 1));
  comm->broadcast(bytes_of(data), size_ - 1, *stream_).wait();
  EXPECT_EQ(floats_of(data), std::vector<float>(100, static_cast<float>(size_)));
}

TEST_F(Nccl, ARankThatIsNeverThereIsFoundAtTheDeadlineByAllRanks) {
  if (is_alone()) GTEST_SKIP() << "one rank connects nothing";
  const auto begin = Clock::now();
  if (rank_ == size_ - 1) emu::config.failure = {"ncclLost", 1};
  try {
    make(NcclUse::collectives, 1.0);
    FAIL() << "connected";
  } catch (const EnvironmentError& error) {
    EXPECT_THAT(error.what(), HasSubstr(fmt::format(
                                  "connecting the GPUs of tp[pp=0,dp=1,cp=0], rank {} of {}", rank_, size_)));
    EXPECT_THAT(error.what(), HasSubstr("not all ranks were there within 1 s"));
  }
  EXPECT_LT(seconds_since(begin), 10.0);
}

TEST_F(Nccl, ARankThatCannotConnectIsNamedAtOnceByAllRanks) {
  if (is_alone()) GTEST_SKIP() << "one rank connects nothing";
  const auto begin = Clock::now();
  if (rank_ == size_ - 1) emu::config.failure = {"ncclCommInitRankConfig", 1};
  const std::string where =
      fmt::format("connecting the GPUs of tp[pp=0,dp=1,cp=0], rank {} of {}", rank_, size_);
  try {
    make(NcclUse::collectives, 60.0);
    FAIL() << "connected";
  } catch (const EnvironmentError& error) {
    EXPECT_EQ(rank_, size_ - 1);
    EXPECT_THAT(error.what(), AllOf(HasSubstr(where), HasSubstr("told to fail")));
  } catch (const PeerError& error) {
    EXPECT_LT(rank_, size_ - 1);
    EXPECT_THAT(error.what(), HasSubstr(fmt::format("{}: rank {} failed", where, size_ - 1)));
  }
  EXPECT_LT(seconds_since(begin), 30.0);
}

TEST_F(Nccl, AnIdThatCannotBeMadeIsReportedByEveryRank) {
  if (is_alone()) GTEST_SKIP() << "one rank connects nothing";
  if (rank_ == 0) emu::config.failure = {"ncclGetUniqueId", 1};
  if (rank_ == 0) {
    EXPECT_THROW(make(NcclUse::collectives), EnvironmentError);
  } else {
    EXPECT_THROW(make(NcclUse::collectives), PeerError);
  }
}

TEST_F(Nccl, AFailingCallIsNamed) {
  if (is_alone()) GTEST_SKIP() << "one rank calls nothing";
  const auto comm = make(NcclUse::collectives);
  const auto data = numbers(8, 1.0f);
  const std::uint64_t number = comm->calls();
  emu::config.failure = {"ncclBroadcast", 1};
  try {
    comm->broadcast(bytes_of(data), 0, *stream_);
    FAIL() << "accepted";
  } catch (const EnvironmentError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr(fmt::format("broadcast #{} on tp[pp=0,dp=1,cp=0], rank {} of {} failed", number,
                                      rank_, size_)));
    EXPECT_THAT(error.what(), HasSubstr("ncclBroadcast was told to fail"));
  }
}

TEST_F(Nccl, ABrokenConnectionIsFoundByPollingAndAbandonedWithoutAHang) {
  if (is_alone()) GTEST_SKIP() << "one rank has no connection";
  const auto comm = make(NcclUse::collectives);
  const auto data = numbers(8, 1.0f), out = numbers(8 * static_cast<std::size_t>(size_), 0.0f);
  comm->all_gather(bytes_of(data), bytes_of(out), *stream_).wait();
  EXPECT_NO_THROW(groups_->poll());
  const std::uint64_t number = comm->calls();
  emu::config.schedule = emu::Schedule::lazy;
  if (rank_ == 0) emu::config.failure = {"ncclAsync", 1};
  const device::Event never = comm->all_gather(bytes_of(data), bytes_of(out), *stream_);
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(never.done());
  if (rank_ == 0) {
    try {
      groups_->poll();
      FAIL() << "not noticed";
    } catch (const PeerError& error) {
      EXPECT_THAT(error.what(), HasSubstr(fmt::format("all_gather #{} on tp[pp=0,dp=1,cp=0], rank 0 of {}",
                                                      number, size_)));
    }
  } else {
    EXPECT_NO_THROW(groups_->poll()) << "only one side has seen it";
  }
  groups_->abort();
  never.wait();
  EXPECT_THROW(comm->all_gather(bytes_of(data), bytes_of(out), *stream_), PeerError);
}

TEST_F(Nccl, RanksInDifferentCallsAreFoundByPolling) {
  if (is_alone()) GTEST_SKIP() << "one rank agrees with itself";
  const auto comm = make(NcclUse::collectives);
  const auto data = numbers(8, 1.0f), out = numbers(8 * static_cast<std::size_t>(size_), 0.0f);
  emu::config.schedule = emu::Schedule::lazy;
  const device::Event event = rank_ == 0 ? comm->broadcast(bytes_of(data), 0, *stream_)
                                         : comm->all_gather(bytes_of(data), bytes_of(out), *stream_);
  event.wait();
  EXPECT_THAT(findings(), AllOf(HasSubstr("ncclBroadcast"), HasSubstr("ncclAllGather")));
  try {
    groups_->poll();
    FAIL() << "not noticed";
  } catch (const InternalError& error) {
    EXPECT_THAT(error.what(), HasSubstr("on tp[pp=0,dp=1,cp=0], rank"));
  }
  groups_->abort();
}

TEST_F(Nccl, AnExceptionEndsTheGroupWithoutItsPeers) {
  if (is_alone()) GTEST_SKIP() << "one rank has no peers";
  const auto data = numbers(8, 1.0f);
  const auto begin = Clock::now();
  device::Event never;
  try {
    const auto comm = make(NcclUse::collectives);
    if (rank_ > 0) never = comm->broadcast(bytes_of(data), 0, *stream_);  // rank 0 does not come
    throw DataError("a file is broken");
  } catch (const DataError&) {
  }
  never.wait();
  EXPECT_LT(seconds_since(begin), 10.0);
}

TEST_F(Nccl, MessagesRoundARingDoNotWaitForEachOther) {
  if (is_alone()) GTEST_SKIP() << "one rank sends nothing";
  for (const int step : {1, -1}) {
    groups_ = make_nccl_groups({.room_bytes = 1 << 16});
    const auto ring = groups_->make(duplicate(MPI_COMM_WORLD, "pp"), "pp", {}, NcclUse::ring, step);
    const int next = (rank_ + size_ + step) % size_, previous = (rank_ + size_ - step) % size_;
    const auto sending = gpu().make_stream("send");
    const auto mine = numbers(50, static_cast<float>(rank_)), from = numbers(50, -1.0f);
    // All post their receive first, as a pipeline does.
    const device::Event received = ring->receive(bytes_of(from), previous, *stream_);
    const device::Event sent = ring->send(bytes_of(mine), next, *sending);
    received.wait();
    sent.wait();
    EXPECT_EQ(floats_of(from), std::vector<float>(50, static_cast<float>(previous))) << step;
    EXPECT_EQ(ring->recent_calls().back().verb, "send");
    EXPECT_EQ(ring->bytes_sent(), 200u);
  }
}

TEST_F(Nccl, NobodySendsToItselfOrBeyondTheGroup) {
  const auto comm = make(NcclUse::on_demand);
  const auto data = numbers(8, 1.0f);
  EXPECT_THROW(comm->send(bytes_of(data), rank_, *stream_), InternalError);
  EXPECT_THROW(comm->receive(bytes_of(data), size_, *stream_), InternalError);
}

TEST_F(Nccl, HostStreamsAndHostMemoryAreRefused) {
  const auto comm = make(NcclUse::on_demand);
  std::vector<std::byte> host(8);
  const auto stream = device::make_inline_stream("host");
  EXPECT_THROW(comm->broadcast(host, 0, *stream), InternalError);
  const auto cpu = device::make_device(device::DeviceKind::cpu, {.threads = 1});
  EXPECT_THROW(comm->allocate_exchange(*cpu, 8, MemoryKind::workspace, "test"), InternalError);
}

TEST_F(Nccl, ExchangeMemoryIsZeroedBookedAndBringsTheRoomForSums) {
  const device::MemoryUsage before = gpu().ledger().current();
  {
    const auto comm = make(NcclUse::collectives);
    device::Buffer odd = comm->allocate_exchange(gpu(), 1001, MemoryKind::gradients, "odd");
    const auto none = comm->allocate_exchange(gpu(), 0, MemoryKind::gradients, "none");
    const auto more = comm->allocate_exchange(gpu(), 4000, MemoryKind::gradients, "more");
    EXPECT_EQ(floats_of(more), std::vector<float>(1000, 0.0f));
    const device::MemoryUsage now = gpu().ledger().current();
    EXPECT_EQ(now.of(MemoryKind::gradients) - before.of(MemoryKind::gradients), 5001u);
    EXPECT_EQ(now.of(MemoryKind::communication) - before.of(MemoryKind::communication), 1u << 16);
    odd.reset();
    EXPECT_EQ(gpu().ledger().current().of(MemoryKind::gradients) - before.of(MemoryKind::gradients), 4000u);
  }
  EXPECT_EQ(gpu().ledger().current().total(), before.total());
}

TEST_F(Nccl, ExchangeMemoryMayOutliveItsGroup) {
  device::Buffer buffer;
  {
    const auto comm = make(NcclUse::collectives);
    buffer = comm->allocate_exchange(gpu(), 400, MemoryKind::gradients, "gradients");
  }
  EXPECT_EQ(floats_of(buffer), std::vector<float>(100, 0.0f));
}

TEST_F(Nccl, ExchangeMemoryMayBeReleasedBeforeItsLastUseIsOver) {
  emu::config.race = true;
  const auto comm = make(NcclUse::collectives);
  device::Buffer buffer = comm->allocate_exchange(gpu(), 400, MemoryKind::gradients, "gradients");
  gpu().ops().fill_zero({buffer.data(), DType::f32, 100}, *stream_);
  buffer.reset();
  EXPECT_EQ(findings(), "");
}

TEST_F(Nccl, PlainMemoryServesWhereNcclHasNone) {
  // The room for sums is the first that is asked for.
  for (const int number : {1, 2}) {
    const auto comm = make(NcclUse::collectives);
    emu::config.failure = {"ncclMemAlloc", number};
    const auto buffer = comm->allocate_exchange(gpu(), 400, MemoryKind::gradients, "gradients");
    EXPECT_EQ(floats_of(buffer), std::vector<float>(100, 0.0f));
    const CanonicalTree tree(size_);
    comm->all_reduce({&tree, {buffer.as<float>()}, 100}, *stream_).wait();
  }
}

TEST_F(Nccl, WhatIsRegisteredIsFreedInAnyOrder) {
  const auto one = make(NcclUse::collectives);
  auto two = groups_->make(duplicate(MPI_COMM_WORLD, "other"), "other", {}, NcclUse::collectives);
  device::Buffer a = one->allocate_exchange(gpu(), 400, MemoryKind::gradients, "a"),
                 b = two->allocate_exchange(gpu(), 400, MemoryKind::gradients, "b");
  a.reset();  // the room stays
  const CanonicalTree tree(size_);
  two->all_reduce({&tree, {b.as<float>()}, 100}, *stream_).wait();
  two.reset();
  EXPECT_EQ(floats_of(b), std::vector<float>(100, 0.0f));
  b.reset();
  if (!is_alone()) {
    EXPECT_THROW(one->all_reduce({&tree, {nullptr}, 100}, *stream_), InternalError) << "the room went";
  }
}

TEST_F(Nccl, MemoryThatOneGpuLacksIsReportedByEveryRank) {
  if (is_alone()) GTEST_SKIP() << "one rank allocates plain memory";
  const auto comm = make(NcclUse::collectives);
  const std::size_t size_bytes = rank_ == 0 ? std::size_t{1} << 45 : 64;
  const auto allocate = [&] {
    return comm->allocate_exchange(gpu(), size_bytes, MemoryKind::gradients, "gradients");
  };
  if (rank_ == 0) {
    EXPECT_THROW(allocate(), EnvironmentError);
  } else {
    EXPECT_THROW(allocate(), PeerError);
  }
}

TEST_F(Nccl, SumsNeedTheRoom) {
  if (is_alone()) GTEST_SKIP() << "one rank receives nothing";
  const auto comm = make(NcclUse::collectives);
  const auto data = numbers(100, 1.0f);
  const CanonicalTree tree(size_);
  EXPECT_THROW(comm->all_reduce({&tree, {data.as<float>()}, 100}, *stream_), InternalError);
}

TEST_F(Nccl, ReductionsOnTwoStreamsUseTheRoomInTurn) {
  const auto one = make(NcclUse::collectives);
  const auto room = one->allocate_exchange(gpu(), 4, MemoryKind::workspace, "room");
  const auto two = groups_->make(duplicate(MPI_COMM_WORLD, "other"), "other", {}, NcclUse::collectives);
  const auto other_stream = gpu().make_stream("other");
  const CanonicalTree tree(size_);
  const auto a = numbers(5000, static_cast<float>(rank_ + 1)),
             b = numbers(5000, 10.0f * static_cast<float>(rank_ + 1));
  other_stream->wait(stream_->record());
  one->all_reduce({&tree, {a.as<float>()}, 5000}, *stream_).wait();
  const device::Event first = one->all_reduce({&tree, {a.as<float>()}, 5000}, *stream_);
  const device::Event second = two->all_reduce({&tree, {b.as<float>()}, 5000}, *other_stream);
  first.wait();
  second.wait();
  const float sum = static_cast<float>(size_ * (size_ + 1) / 2);
  EXPECT_EQ(floats_of(a), std::vector<float>(5000, sum * static_cast<float>(size_)));
  EXPECT_EQ(floats_of(b), std::vector<float>(5000, 10 * sum));
}

TEST_F(Nccl, SumsByTheLibraryAreThereForComparison) {
  const auto comm = make(NcclUse::collectives);
  const auto sum = static_cast<float>(size_ * (size_ + 1) / 2);  // small whole numbers: every order gives it
  for (const std::size_t count :
       {std::size_t{0}, std::size_t{1}, std::size_t{5000}, 1024 * static_cast<std::size_t>(size_)}) {
    const auto all = numbers(count, static_cast<float>(rank_ + 1));
    comm->library_all_reduce({all.as<float>(), count}, *stream_).wait();
    EXPECT_EQ(floats_of(all), std::vector<float>(count, sum)) << count;
    for (const int shard : {0, size_ % 2 == 0 ? 2 : size_}) {
      const auto scattered = numbers(count, static_cast<float>(rank_ + 1));
      const auto before = comm->bytes_sent();
      comm->library_reduce_scatter({scattered.as<float>(), count}, shard, *stream_).wait();
      std::vector<float> expected(count, static_cast<float>(rank_ + 1));
      const LeafRange own = chunk_range(static_cast<Index>(count), rank_, size_, shard);
      std::fill(expected.begin() + own.begin, expected.begin() + own.end, sum);
      EXPECT_EQ(floats_of(scattered), expected) << count << ", shards of " << shard;
      EXPECT_EQ(comm->bytes_sent() - before, 4 * (count - static_cast<std::size_t>(own.end - own.begin)));
    }
  }
}

TEST_F(Nccl, CallsAreTimedByTheGpu) {
  const auto comm = make(NcclUse::collectives);
  const auto data = numbers(8, 1.0f);
  const auto event = comm->broadcast(bytes_of(data), 0, *stream_);
  event.wait();
  const auto calls = comm->recent_calls();
  EXPECT_EQ(calls.back().verb, "broadcast");
  EXPECT_TRUE(calls.back().done);
  EXPECT_GT(calls.back().seconds, 0.0);
  EXPECT_EQ(comm->seconds(), calls.back().seconds);
}

class NcclMesh : public ::testing::Test {
 protected:
  comm::Session& session_ = testing::session();
};

TEST_F(NcclMesh, HasTheSameGroupsAsOverMpi) {
  gpu();
  const int size = session_.world_size();
  const MeshShape shape{1, size % 2 == 0 ? size / 2 : size, 1, size % 2 == 0 ? 2 : 1};
  Mesh mesh(session_, shape, device::DeviceKind::cuda), over_mpi(session_, shape);
  for (const Axis axis : kAxes) {
    EXPECT_EQ(mesh.axis(axis).name(), over_mpi.axis(axis).name());
    EXPECT_EQ(mesh.axis(axis).rank(), over_mpi.axis(axis).rank());
    EXPECT_EQ(mesh.axis(axis).size(), over_mpi.axis(axis).size());
  }
  EXPECT_EQ(mesh.world().max(session_.rank()), size - 1);
  EXPECT_NO_THROW(native_handle(mesh.data_plane()));
  mesh.poll();
}

TEST_F(NcclMesh, CountsTheTrafficOfAnAxis) {
  gpu();
  const int size = session_.world_size();
  Mesh mesh(session_, {1, size, 1, 1}, device::DeviceKind::cuda);
  const auto stream = gpu().make_stream("test");
  const auto in = mesh.data_plane().allocate_exchange(gpu(), 400, MemoryKind::workspace, "in"),
             out = mesh.data_plane().allocate_exchange(gpu(), 400 * static_cast<std::size_t>(size),
                                                       MemoryKind::workspace, "out");
  mesh.data_plane().all_gather(bytes_of(in), bytes_of(out), *stream).wait();
  EXPECT_EQ(mesh.traffic(Axis::dp).bytes_sent, 400u * static_cast<unsigned>(size - 1));
  EXPECT_GT(mesh.traffic(Axis::dp).seconds, 0.0);
}

TEST_F(NcclMesh, BooksWhatAnImaginedOneBooks) {
  gpu();
  const int size = session_.world_size();
  const auto booked = [](Communicator& plane, device::Device& device) {
    const std::size_t before = device.ledger().current().of(MemoryKind::communication);
    const auto buffer = plane.allocate_exchange(device, 400, MemoryKind::gradients, "gradients");
    return device.ledger().current().of(MemoryKind::communication) - before;
  };
  const MeshShape shape{1, size, 1, 1};
  const auto sim = device::make_sim_device(device::DeviceKind::cuda, {});
  Mesh mesh(session_, shape, device::DeviceKind::cuda);
  Mesh imagined = Mesh::imagined(shape, session_.rank());
  EXPECT_EQ(booked(mesh.data_plane(), gpu()), size > 1 ? ReductionRoom::kBytes : 0);
  EXPECT_EQ(booked(imagined.data_plane(), *sim), size > 1 ? ReductionRoom::kBytes : 0);
  const auto imagined_cpu = device::make_sim_device(device::DeviceKind::cpu, {.threads = 1});
  EXPECT_EQ(booked(imagined.data_plane(), *imagined_cpu), 0u);
}

TEST_F(NcclMesh, AloneItWorksOnAGpuToo) {
  Mesh alone = Mesh::alone();
  const auto stream = gpu().make_stream("test");
  const auto in = alone.data_plane().allocate_exchange(gpu(), 400, MemoryKind::workspace, "in"),
             out = alone.data_plane().allocate_exchange(gpu(), 400, MemoryKind::workspace, "out");
  const std::vector<float> host(100, 3.0f);
  gpu().copy_in(in.data(), host.data(), 400, *stream);
  alone.data_plane().all_to_all(bytes_of(in), bytes_of(out), *stream).wait();
  EXPECT_EQ(floats_of(out), host);
}

TEST_F(NcclMesh, AloneAnEventComesAfterWhatWasOnTheStream) {
  // Nothing moves, so what a call returns tells only of the work before it.
  Mesh alone = Mesh::alone();
  Communicator& comm = alone.data_plane();
  const auto stream = gpu().make_stream("test");
  const auto data = comm.allocate_exchange(gpu(), 400, MemoryKind::workspace, "data"),
             copy = comm.allocate_exchange(gpu(), 400, MemoryKind::workspace, "copy");
  std::vector<std::int64_t> integers{1};
  const std::vector<std::function<device::Event()>> calls{
      [&] { return comm.all_gather(bytes_of(data), bytes_of(data), *stream); },
      [&] { return comm.broadcast(bytes_of(data), 0, *stream); },
      [&] { return comm.send(bytes_of(data), 0, *stream); },
      [&] { return comm.receive(bytes_of(data), 0, *stream); },
      [&] { return comm.sum_integers(integers, *stream); }};
  for (std::size_t i = 0; i < calls.size(); ++i) {
    gpu().ops().fill_zero({data.data(), DType::f32, 100}, *stream);
    gpu().compute_stream().wait(calls[i]());
    gpu().copy(copy.data(), data.data(), 400, gpu().compute_stream());
    gpu().compute_stream().synchronize();
    EXPECT_EQ(findings(), "") << i;
  }
}

}  // namespace
}  // namespace cartan::comm
