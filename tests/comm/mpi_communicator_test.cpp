// What only the MPI communicator has: windows, agreement on calls, errors of MPI.
#include "comm/mpi/mpi_communicator.hpp"

#include <gmock/gmock.h>

#include <chrono>
#include <thread>

#include "ways.hpp"

namespace cartan::comm {
namespace {

using ::testing::HasSubstr;

template <class T>
ByteView writable(T& value) {
  return std::as_writable_bytes(std::span(value));
}
template <class T>
ConstByteView readable(const T& value) {
  return std::as_bytes(std::span(value));
}

class Exchange : public ::testing::Test {
 protected:
  MpiCommunicator comm_{duplicate(MPI_COMM_WORLD, "dp.cp[pp=0,tp=0]"), "dp.cp[pp=0,tp=0]",
                        options_of(Way::exchange)};
  std::unique_ptr<device::Device> device_ = device::make_device(device::DeviceKind::cpu, {.threads = 1});
  std::unique_ptr<device::HostStream> stream_ = device::make_inline_stream("test");
};

TEST_F(Exchange, MemoryIsZeroedAlignedAndBooked) {
  const auto kind = device::MemoryKind::gradients;
  {
    const auto odd = comm_.allocate_exchange(*device_, 1001, kind, "odd");
    const auto next = comm_.allocate_exchange(*device_, 4096, kind, "next");
    for (const auto* buffer : {&odd, &next}) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer->data()) % 64, 0u);
      for (std::size_t i = 0; i < buffer->size_bytes(); ++i) ASSERT_EQ(buffer->as<unsigned char>()[i], 0);
    }
    EXPECT_EQ(device_->ledger().current().of(kind), 5097u);
  }
  EXPECT_EQ(device_->ledger().current().of(kind), 0u);
}

TEST_F(Exchange, MemoryMayBeReleasedAndAllocatedAgain) {
  for (int turn = 0; turn < 3; ++turn) {
    const auto buffer = comm_.allocate_exchange(*device_, 64, device::MemoryKind::workspace, "again");
    buffer.as<int>()[0] = comm_.rank() + turn;
    std::vector<int> all(static_cast<std::size_t>(comm_.size()));
    comm_.all_gather(readable(std::span(buffer.as<int>(), 1)), writable(all), *stream_).wait();
    for (int r = 0; r < comm_.size(); ++r) EXPECT_EQ(all[static_cast<std::size_t>(r)], r + turn);
  }
}

TEST_F(Exchange, MemoryThatTheNodeLacksIsRefusedByNameOnEveryRank) {
  if (comm_.size() == 1) GTEST_SKIP() << "one rank allocates plain memory";
  try {
    comm_.allocate_exchange(*device_, std::size_t{1} << 50, device::MemoryKind::gradients, "gradients");
    FAIL() << "accepted";
  } catch (const EnvironmentError& error) {
    EXPECT_THAT(error.what(), HasSubstr("gradients on dp.cp[pp=0,tp=0] needs"));
    EXPECT_THAT(error.what(), HasSubstr("CARTAN_COMM=messages"));
  }
}

TEST(ExchangeOfNodes, MemoryThatOneNodeLacksIsRefusedOnEveryNode) {
  MpiCommunicator comm(duplicate(MPI_COMM_WORLD, "test"), "test", options_of(Way::nodes_of_2));
  if (!comm.uses_nodes()) GTEST_SKIP() << "needs several nodes of two";
  const auto device = device::make_device(device::DeviceKind::cpu, {.threads = 1});
  const std::size_t size_bytes = comm.rank() < 2 ? std::size_t{1} << 50 : 64;
  const auto allocate = [&] {
    return comm.allocate_exchange(*device, size_bytes, device::MemoryKind::gradients, "gradients");
  };
  if (comm.rank() < 2) {
    EXPECT_THROW(allocate(), EnvironmentError);
  } else {
    EXPECT_THROW(allocate(), PeerError);
  }
}

TEST_F(Exchange, RanksInDifferentCallsAreNamed) {
  if (comm_.size() == 1) GTEST_SKIP() << "one rank agrees with itself";
  std::vector<std::byte> in(64), out(64 * static_cast<std::size_t>(comm_.size()));
  try {
    if (comm_.rank() == 0) {
      comm_.broadcast(in, 0, *stream_).wait();
    } else {
      comm_.all_gather(in, out, *stream_).wait();
    }
    FAIL() << "not noticed";
  } catch (const InternalError& error) {
    EXPECT_THAT(error.what(), HasSubstr("ranks of dp.cp[pp=0,tp=0] are in different calls"));
    EXPECT_THAT(error.what(), HasSubstr("broadcast (64 B, root 0)"));
    EXPECT_THAT(error.what(), HasSubstr(fmt::format("all_gather ({} B", 64 * comm_.size())));
  }
}

TEST_F(Exchange, SizesThatDifferBetweenRanksAreNoticed) {
  if (comm_.size() == 1) GTEST_SKIP() << "one rank agrees with itself";
  std::vector<std::byte> data(comm_.rank() == 0 ? 64 : 128);
  EXPECT_THROW(comm_.broadcast(data, 0, *stream_).wait(), InternalError);
}

TEST_F(Exchange, CollectivesOnTwoStreamsAtOnceAreADefect) {
  if (comm_.size() == 1) GTEST_SKIP() << "one rank never waits in a collective";
  std::vector<int> in(4, comm_.rank()), out(4 * static_cast<std::size_t>(comm_.size()));
  if (comm_.rank() != 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));  // rank 0 is in both of its calls by now
    comm_.all_gather(readable(in), writable(out), *stream_).wait();
    return;
  }
  const auto attempt = [&](const device::Event& event) {
    try {
      event.wait();
      return 0;
    } catch (const InternalError& error) {
      EXPECT_THAT(error.what(), HasSubstr("dp.cp[pp=0,tp=0]: two streams"));
      return 1;
    }
  };
  const auto other = device::make_threaded_stream("other");
  const auto first = comm_.all_gather(readable(in), writable(out), *other);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const auto second = comm_.all_gather(readable(in), writable(out), *stream_);
  EXPECT_EQ(attempt(first) + attempt(second), 1);
}

TEST_F(Exchange, PeersBeyondTheGroupAreNamed) {
  std::vector<std::byte> data(8);
  EXPECT_THROW(comm_.send_host(data, comm_.size()), InternalError);
  EXPECT_THROW(comm_.broadcast(data, -1, *stream_), InternalError);
}

TEST_F(Exchange, StreamsOfOtherDevicesAreRefused) {
  class OtherStream : public device::Stream {
   public:
    const std::string& name() const override { return name_; }
    device::Event record() override { return {}; }
    void wait(const device::Event&) override {}
    void synchronize() override {}

   private:
    std::string name_ = "other";
  } stream;
  std::vector<std::byte> data(8);
  EXPECT_THROW(comm_.broadcast(data, 0, stream), InternalError);
}

TEST(AllOrNone, TheOthersLearnWhichRankFailed) {
  MpiCommunicator comm(duplicate(MPI_COMM_WORLD, "test"), "test", {});
  const int culprit = comm.size() - 1;
  const auto attempt = [&] {
    all_or_none(comm, "opening the data", [&] {
      comm.barrier();
      if (comm.rank() == culprit) throw DataError("no such document");
    });
  };
  try {
    attempt();
    FAIL() << "accepted";
  } catch (const DataError&) {
    EXPECT_EQ(comm.rank(), culprit);
  } catch (const PeerError& error) {
    EXPECT_NE(comm.rank(), culprit);
    EXPECT_THAT(error.what(), HasSubstr("opening the data failed on rank " + std::to_string(culprit)));
  }
}

TEST(Errors, NameCommunicatorVerbAndPeer) {
  try {
    check(MPI_ERR_RANK, "tp[pp=0,dp=1,cp=0]", "send", 7);
    FAIL() << "accepted";
  } catch (const EnvironmentError& error) {
    EXPECT_THAT(error.what(), HasSubstr("send on tp[pp=0,dp=1,cp=0] with rank 7 failed"));
  }
  EXPECT_THROW(check(MPI_ERR_TRUNCATE, "world", "receive"), InternalError);
  EXPECT_NO_THROW(check(MPI_SUCCESS, "world", "receive"));
}

TEST(Errors, AMessageLongerThanExpectedIsReported) {
  MpiCommunicator comm(duplicate(MPI_COMM_WORLD, "test"), "test", options_of(Way::messages));
  std::vector<std::byte> data(comm.rank() == 0 ? 64 : 32);
  if (comm.rank() == 0) {
    for (int r = 1; r < comm.size(); ++r) comm.send_host(data, r);
  } else {
    EXPECT_THROW(comm.receive_host(data, 0), InternalError);
  }
}

class NodesFirst : public ::testing::Test {
 protected:
  /// What a reduce_scatter of one leaf a rank sends to other pretended nodes, from all ranks together.
  static std::int64_t crossing(bool messages, int ranks_per_node) {
    MpiOptions options = options_of(Way::messages);
    options.force_messages = messages;
    options.ranks_per_node = ranks_per_node;
    MpiCommunicator comm(duplicate(MPI_COMM_WORLD, "test"), "test", options);
    EXPECT_EQ(comm.uses_nodes(), !messages);
    const Index count = 1024 * 12;
    const CanonicalTree tree(comm.size());
    std::vector<float> slot(static_cast<std::size_t>(count)), out(slot);
    const auto stream = device::make_inline_stream("test");
    comm.reduce_scatter({&tree, {slot.data()}, count}, {out.data()}, *stream).wait();
    auto bytes = static_cast<std::int64_t>(comm.bytes_between_nodes());
    comm.sum({&bytes, 1});
    return bytes;
  }
};

TEST_F(NodesFirst, SendsAsManyTimesLessAcrossAsANodeHasRanks) {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size != 4) GTEST_SKIP() << "two nodes of two";
  // Each of 4 ranks sends two chunks of a quarter of 48 KiB, or its node's sum of one.
  EXPECT_EQ(crossing(true, 2), 4 * 2 * 12 * 1024);
  EXPECT_EQ(crossing(false, 2), 4 * 1 * 12 * 1024);
}

TEST_F(NodesFirst, IsLeftToMessagesWhereNodesHoldDifferentNumbersOfRanks) {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const int ranks_per_node : {1, 2, 3}) {
    MpiOptions options = options_of(Way::exchange);
    options.ranks_per_node = ranks_per_node;
    MpiCommunicator comm(duplicate(MPI_COMM_WORLD, "test"), "test", options);
    const bool regular = size % ranks_per_node == 0 && ranks_per_node > 1;
    EXPECT_EQ(comm.uses_nodes(), regular && size > ranks_per_node) << ranks_per_node;
    EXPECT_EQ(comm.uses_shared_memory(), size > 1 && size <= ranks_per_node) << ranks_per_node;
  }
}

TEST(NodeLayout, RanksOutOfOrderAreNotRegular) {
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size != 4) GTEST_SKIP() << "two nodes of two";
  const auto ordered = [&](int key) {
    MPI_Comm raw = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, 0, key, &raw);
    const CommHandle comm(raw);
    return find_nodes(comm.get(), "test", 2).ranks_per_node;
  };
  EXPECT_EQ(ordered(rank), 2);
  EXPECT_EQ(ordered(3 - rank), 2) << "backwards";
  EXPECT_EQ(ordered(rank % 2 * 2 + rank / 2), 1) << "from node to node";
}

}  // namespace
}  // namespace cartan::comm
