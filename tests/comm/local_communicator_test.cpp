// The communicator without peers: for one rank its verbs mean what a collective of one rank means.
#include <gtest/gtest.h>

#include <numeric>

#include "cartan/comm/communicator.hpp"
#include "cartan/comm/session.hpp"

namespace cartan::comm {
namespace {

template <class T>
ConstByteView bytes(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}
template <class T>
ByteView bytes(std::vector<T>& values) {
  return std::as_writable_bytes(std::span(values));
}

class OneRank : public testing::Test {
 protected:
  std::unique_ptr<Communicator> comm_ = make_local_communicator("alone");
  std::unique_ptr<device::HostStream> stream_ = device::make_inline_stream("test");
  const std::vector<int> in_{1, 2, 3};
  std::vector<int> out_ = std::vector<int>(3);
};

TEST_F(OneRank, GathersItsOwnOperand) {
  comm_->all_gather(bytes(in_), bytes(out_), *stream_).wait();
  EXPECT_EQ(out_, in_);
}

TEST_F(OneRank, ExchangesWithItself) {
  comm_->all_to_all(bytes(in_), bytes(out_), *stream_).wait();
  EXPECT_EQ(out_, in_);
}

TEST_F(OneRank, SumsAreWhatItHoldsAlready) {
  const CanonicalTree tree(5);
  std::vector<float> slot{1, 2, 3, 4}, out(4);
  const PartialSums sums{&tree, {slot.data()}, 4};
  comm_->reduce_scatter(sums, {out.data()}, *stream_).wait();
  EXPECT_EQ(out, slot);
  comm_->all_reduce(sums, *stream_).wait();
  EXPECT_EQ(slot, out);
}

TEST_F(OneRank, ControlPlaneReturnsItsOwnValues) {
  EXPECT_EQ(comm_->max(-7), -7);
  std::vector<std::int64_t> values{3, -9};
  comm_->max(values);
  EXPECT_EQ(values, (std::vector<std::int64_t>{3, -9}));
  comm_->barrier();
  comm_->all_gather_host(bytes(in_), bytes(out_));
  EXPECT_EQ(out_, in_);
  comm_->broadcast_host(bytes(out_), 0);
  EXPECT_EQ(out_, in_);
}

TEST_F(OneRank, RecordsItsCalls) {
  comm_->all_gather(bytes(in_), bytes(out_), *stream_).wait();
  comm_->barrier();
  ASSERT_EQ(comm_->calls(), 2u);
  EXPECT_EQ(comm_->recent_calls()[0].verb, "all_gather");
  EXPECT_EQ(comm_->recent_calls()[0].bytes, 3 * sizeof(int));
  EXPECT_TRUE(comm_->recent_calls()[1].done);
}

TEST_F(OneRank, ExchangeMemoryIsZeroedAndBooked) {
  const auto device = device::make_device(device::DeviceKind::cpu, {.threads = 1});
  const auto before = device->ledger().current().total();
  {
    const auto buffer = comm_->allocate_exchange(*device, 4096, device::MemoryKind::gradients, "gradients");
    EXPECT_EQ(std::accumulate(buffer.as<float>(), buffer.as<float>() + 1024, 0.0f), 0.0f);
    EXPECT_EQ(device->ledger().current().of(device::MemoryKind::gradients), 4096u);
  }
  EXPECT_EQ(device->ledger().current().total(), before);
}

TEST_F(OneRank, HasNoMpiHandle) { EXPECT_THROW(native_handle(*comm_), InternalError); }

TEST_F(OneRank, FailureInAllOrNoneIsRethrown) {
  EXPECT_THROW(all_or_none(*comm_, "reading", [] { throw DataError("broken"); }), DataError);
  EXPECT_NO_THROW(all_or_none(*comm_, "reading", [] {}));
}

TEST(ImaginedGroup, KeepsSizeAndRankButMovesNothing) {
  const auto comm = make_local_communicator("dp.cp[pp=0,tp=0]", 2, 8);
  EXPECT_EQ(comm->rank(), 2);
  EXPECT_EQ(comm->size(), 8);
  const auto stream = device::make_inline_stream("test");
  // Addresses that nobody may follow.
  auto* nowhere = reinterpret_cast<std::byte*>(0x1000);
  const CanonicalTree tree(16);
  comm->all_gather({nowhere, 64}, {nowhere, 512}, *stream).wait();
  comm->all_reduce({&tree, {reinterpret_cast<float*>(nowhere)}, 64}, *stream).wait();
  EXPECT_EQ(comm->calls(), 2u);
}

TEST(ImaginedGroup, OfOneRankFollowsNoAddressEither) {
  const auto comm = make_local_communicator("world", 0, 1, true);
  const auto sim = device::make_sim_device(device::DeviceKind::cpu, {.threads = 1});
  const auto in = comm->allocate_exchange(*sim, 64, device::MemoryKind::communication, "in");
  const auto out = sim->allocate(64, device::MemoryKind::communication, "out");
  const ConstByteView from(static_cast<const std::byte*>(in.data()), 64);
  comm->all_to_all(from, {static_cast<std::byte*>(out.data()), 64}, sim->compute_stream()).wait();
  EXPECT_EQ(comm->recent_calls().back().verb, "all_to_all");
}

TEST_F(OneRank, StreamsOfOtherDevicesAreRefused) {
  class OtherStream : public device::Stream {
   public:
    const std::string& name() const override { return name_; }
    device::Event record() override { return {}; }
    void wait(const device::Event&) override {}
    void synchronize() override {}

   private:
    std::string name_ = "other";
  } stream;
  EXPECT_THROW(comm_->all_gather(bytes(in_), bytes(out_), stream), InternalError);
}

}  // namespace
}  // namespace cartan::comm
