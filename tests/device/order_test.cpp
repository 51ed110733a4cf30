// What the device orders by itself, without events of its users: memory that is released, the pinned buffers
// of copies from and to the host, scratch memory that streams share.
#include <gtest/gtest.h>

#include <algorithm>

#include "device/ops_fixture.hpp"

namespace cartan::device {
namespace {

using testing::Array;

class Order : public ::testing::Test {
 protected:
  static constexpr std::size_t kCount = 5001, kBytes = kCount * sizeof(float);
  static std::vector<float> filled(float value) { return std::vector<float>(kCount, value); }

  Device& device_ = testing::device();
  Stream& compute_ = device_.compute_stream();
  std::unique_ptr<Stream> other_ = device_.make_stream("other");
};

TEST_F(Order, MemoryMayBeReleasedBeforeItsLastUseIsOver) {
  if (testing::on_cpu()) GTEST_SKIP() << "whoever releases memory of the host waits";
  const Array<float> source(filled(1.0f));
  {
    const Buffer released = device_.allocate(kBytes, MemoryKind::workspace, "a test");
    device_.copy(released.data(), source.data(), kBytes, *other_);
  }
  const Array<float> next(filled(2.0f));  // may lie in the same place
  other_->synchronize();
  EXPECT_EQ(next.host(), filled(2.0f));
}

/// Memory of the host that the device copies to.
class OrderForTheHost : public Order {
 protected:
  OrderForTheHost() { std::fill(host_.begin(), host_.end(), 0.0f); }
  Event copied() {
    device_.copy(host_.data(), source_.data(), kBytes, *other_);
    return other_->record();
  }
  const Array<float> source_{filled(1.0f)};
  const Buffer buffer_ = device_.allocate_offloaded(kBytes, "a test");
  const std::span<float> host_{buffer_.as<float>(), kCount};
};

TEST_F(OrderForTheHost, AnEventIsDoneWhenItsWorkIs) {
  const Event event = copied();
  if (event.done()) {
    EXPECT_EQ(host_.back(), 1.0f);
  }
  other_->synchronize();
  EXPECT_TRUE(event.done());
}

TEST_F(OrderForTheHost, WhoWaitedForAnEventSeesItsWork) {
  copied().wait();
  EXPECT_EQ(host_.back(), 1.0f);
}

TEST_F(OrderForTheHost, WhoWaitedForAStreamSeesItsWork) {
  copied();
  other_->synchronize();
  EXPECT_EQ(host_.back(), 1.0f);
}

TEST_F(OrderForTheHost, AStreamFinishesItsWorkBeforeItIsDestroyed) {
  copied();
  other_.reset();
  EXPECT_EQ(host_.back(), 1.0f);
}

TEST_F(Order, CopiesFromTheHostMayFollowEachOther) {
  std::vector<std::vector<float>> sent;
  std::vector<Array<float>> received;
  for (int i = 0; i < 5; ++i) {
    sent.push_back(filled(static_cast<float>(i)));
    received.emplace_back(kCount);
  }
  for (std::size_t i = 0; i < sent.size(); ++i)
    device_.copy_in(received[i].data(), sent[i].data(), kBytes, *other_);
  other_->synchronize();
  for (std::size_t i = 0; i < sent.size(); ++i) EXPECT_EQ(received[i].host(), sent[i]) << i;
}

TEST_F(Order, CopiesToTheHostMayFollowCopiesFromIt) {
  const std::vector<float> sent[] = {filled(1.0f), filled(2.0f)};
  Array<float> received[] = {Array<float>(kCount), Array<float>(kCount)};
  const Array<float> there(filled(3.0f));
  for (std::size_t i = 0; i < 2; ++i) device_.copy_in(received[i].data(), sent[i].data(), kBytes, *other_);
  EXPECT_EQ(there.host(), filled(3.0f));
  other_->synchronize();
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(received[i].host(), sent[i]) << i;
}

TEST_F(Order, CopiesOfManyPiecesArriveWhole) {
  std::vector<std::int32_t> numbers(3'000'017);  // 11.4 MiB
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::int32_t>(i);
  EXPECT_TRUE(Array<std::int32_t>(numbers).host() == numbers);
}

TEST_F(Order, StreamsTakeTurnsWithScratchMemory) {
  const auto third = device_.make_stream("third");
  Array<float> sums[] = {Array<float>(kCount), Array<float>(kCount)};
  const Array<float> values[] = {Array<float>(filled(1.0f)), Array<float>(filled(2.0f))};
  std::vector<int> merges(500, 1);  // a list that is too long for the parameters of a kernel
  merges[0] = 0;
  for (const std::size_t i : {0, 1}) {
    const std::vector<const float*> list(merges.size(), values[i].data());
    device_.ops().tree_sum(list, merges, sums[i].data(), static_cast<Index>(kCount),
                           i == 0 ? *other_ : *third);
  }
  other_->synchronize();
  third->synchronize();
  EXPECT_EQ(sums[0].host(), filled(500.0f));
  EXPECT_EQ(sums[1].host(), filled(1000.0f));
}

}  // namespace
}  // namespace cartan::device
