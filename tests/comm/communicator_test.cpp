// Every verb of the MPI communicator with small whole numbers, in each way in which it moves data.
#include <gmock/gmock.h>

#include <chrono>
#include <thread>

#include "ways.hpp"

namespace cartan::comm {
namespace {

using testing::HasSubstr;

template <class T>
ByteView writable(T& value) {
  return std::as_writable_bytes(std::span(value));
}
template <class T>
ConstByteView readable(const T& value) {
  return std::as_bytes(std::span(value));
}

class Verbs : public EachWay {
 protected:
  /// What rank r holds at place i.
  static float mark(int r, std::size_t i) {
    return static_cast<float>(r * 10000 + static_cast<int>(i % 9973));
  }
  std::size_t size() const { return static_cast<std::size_t>(comm_.size()); }
};

TEST_P(Verbs, AllGatherBringsEveryRanksPart) {
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{77}, std::size_t{5000}}) {
    const auto in = operand(count), out = operand(count * size());
    for (std::size_t i = 0; i < count; ++i) in[i] = mark(comm_.rank(), i);
    comm_.all_gather(readable(in), writable(out), *stream_).wait();
    for (int r = 0; r < comm_.size(); ++r) {
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(out[static_cast<std::size_t>(r) * count + i], mark(r, i)) << count;
      }
    }
  }
}

TEST_P(Verbs, AllGatherWorksInPlace) {
  const std::size_t count = 1500;
  const auto out = operand(count * size());
  const auto in = out.subspan(static_cast<std::size_t>(comm_.rank()) * count, count);
  for (std::size_t i = 0; i < count; ++i) in[i] = mark(comm_.rank(), i);
  comm_.all_gather(readable(in), writable(out), *stream_).wait();
  for (std::size_t i = 0; i < out.size(); ++i) {
    ASSERT_EQ(out[i], mark(static_cast<int>(i / count), i % count));
  }
}

TEST_P(Verbs, PartsOfDifferentSizesAreGathered) {
  const int size = comm_.size();
  for (const std::size_t gap : {0u, 3u}) {
    const auto width = [&](int r) { return static_cast<std::size_t>(r == 1 ? 0 : 700 * r + 5); };
    std::size_t total = 0;
    for (int r = 0; r < size; ++r) total += width(r) + gap;
    const auto memory = operand(total);
    std::vector<ByteView> parts;
    std::size_t at = 0;
    for (int r = 0; r < size; ++r) {
      parts.push_back(std::as_writable_bytes(memory.subspan(at, width(r))));
      if (r == comm_.rank())
        std::fill_n(memory.begin() + static_cast<std::ptrdiff_t>(at), width(r), static_cast<float>(r + 1));
      at += width(r) + gap;
    }
    comm_.all_gather_parts(parts, *stream_).wait();
    at = 0;
    for (int r = 0; r < size; ++r) {
      for (std::size_t i = 0; i < width(r); ++i) ASSERT_EQ(memory[at + i], static_cast<float>(r + 1));
      for (std::size_t i = 0; i < gap; ++i) ASSERT_EQ(memory[at + width(r) + i], 0.0f);
      at += width(r) + gap;
    }
  }
}

TEST_P(Verbs, AllToAllTransposesBlocks) {
  for (const std::size_t block : {std::size_t{0}, std::size_t{1}, std::size_t{999}}) {
    const auto in = operand(block * size()), out = operand(block * size());
    for (int to = 0; to < comm_.size(); ++to) {
      for (std::size_t i = 0; i < block; ++i) {
        in[static_cast<std::size_t>(to) * block + i] = mark(comm_.rank() * 10 + to, i);
      }
    }
    comm_.all_to_all(readable(in), writable(out), *stream_).wait();
    for (int from = 0; from < comm_.size(); ++from) {
      for (std::size_t i = 0; i < block; ++i) {
        ASSERT_EQ(out[static_cast<std::size_t>(from) * block + i], mark(from * 10 + comm_.rank(), i))
            << block;
      }
    }
  }
}

TEST_P(Verbs, BroadcastBringsTheRootsData) {
  for (int root = 0; root < comm_.size(); ++root) {
    const auto data = operand(2500);
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = mark(comm_.rank(), i);
    comm_.broadcast(writable(data), root, *stream_).wait();
    for (std::size_t i = 0; i < data.size(); ++i) ASSERT_EQ(data[i], mark(root, i)) << "root " << root;
  }
}

TEST_P(Verbs, SendMeetsReceiveAroundARing) {
  const auto data = operand(3001), from_left = operand(3001);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = mark(comm_.rank(), i);
  const int right = (comm_.rank() + 1) % comm_.size(),
            left = (comm_.rank() + comm_.size() - 1) % comm_.size();
  const auto sending = device::make_threaded_stream("send");
  const auto sent = comm_.send(readable(data), right, *sending);
  comm_.receive(writable(from_left), left, *stream_).wait();
  sent.wait();
  for (std::size_t i = 0; i < data.size(); ++i) ASSERT_EQ(from_left[i], mark(left, i));
}

TEST_P(Verbs, ControlPlaneAgrees) {
  EXPECT_EQ(comm_.max(comm_.rank() * 3 - 5), (comm_.size() - 1) * 3 - 5);
  EXPECT_EQ(comm_.max(-(std::int64_t{1} << 40) * (comm_.rank() + 1)), -(std::int64_t{1} << 40));
  comm_.barrier();
  std::vector<int> data(700, comm_.rank());
  comm_.broadcast_host(writable(data), comm_.size() - 1);
  EXPECT_EQ(data, std::vector<int>(700, comm_.size() - 1));
  const std::vector<int> mine(2, comm_.rank());
  std::vector<int> all(2 * size());
  comm_.all_gather_host(readable(mine), writable(all));
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], static_cast<int>(i / 2));
}

TEST_P(Verbs, IntegersAreSummed) {
  std::array<std::int64_t, 3> values{1, comm_.rank(), -(std::int64_t{1} << 40)};
  comm_.sum(values);
  const std::int64_t size = comm_.size();
  EXPECT_EQ(values, (std::array<std::int64_t, 3>{size, size * (size - 1) / 2, -(size << 40)}));
}

TEST_P(Verbs, HostMessagesArriveInOrder) {
  if (comm_.rank() == 0) {
    for (int r = 1; r < comm_.size(); ++r) {
      for (int value : {10, 20}) {
        const std::vector<int> message(600, value + r);
        comm_.send_host(readable(message), r);
      }
    }
  } else {
    for (int value : {10, 20}) {
      std::vector<int> message(600);
      comm_.receive_host(writable(message), 0);
      EXPECT_EQ(message, std::vector<int>(600, value + comm_.rank()));
    }
  }
}

TEST_P(Verbs, EveryCallIsRecorded) {
  const auto in = operand(16), out = operand(16 * size());
  const auto before = comm_.calls();
  comm_.all_gather(readable(in), writable(out), *stream_).wait();
  comm_.barrier();
  ASSERT_EQ(comm_.calls(), before + 2);
  const auto calls = comm_.recent_calls();
  const CallRecord& gather = calls[calls.size() - 2];
  EXPECT_EQ(gather.verb, "all_gather");
  EXPECT_EQ(gather.bytes, 64u);
  EXPECT_EQ(gather.sequence, before);
  EXPECT_TRUE(gather.done);
  EXPECT_EQ(calls.back().verb, "barrier");
  EXPECT_GT(comm_.seconds(), 0.0);
}

TEST_P(Verbs, ReductionOverlapsWithAgreementOnAnotherCommunicator) {
  MpiCommunicator other(duplicate(MPI_COMM_WORLD, "other"), "other", options_of(GetParam()));
  const CanonicalTree tree(comm_.size());
  const auto data = operand(20000);
  const auto stream = device::make_threaded_stream("communication");
  const auto expected = static_cast<float>(comm_.size() * (comm_.size() + 1) / 2);
  for (int turn = 0; turn < 5; ++turn) {
    std::fill(data.begin(), data.end(), static_cast<float>(comm_.rank() + 1));
    if (comm_.rank() == turn % comm_.size()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const auto reduced = comm_.all_reduce({&tree, {data.data()}, 20000}, *stream);
    EXPECT_EQ(other.max(comm_.rank() + turn), comm_.size() - 1 + turn);
    EXPECT_EQ(comm_.max(comm_.rank()), comm_.size() - 1);  // the control plane of the same one too
    reduced.wait();
    ASSERT_EQ(std::count(data.begin(), data.end(), expected), 20000);
  }
}

CARTAN_EACH_WAY(Verbs);

class Exchange : public testing::Test {
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

}  // namespace
}  // namespace cartan::comm
