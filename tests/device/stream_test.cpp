// Order, failures and events are the same for inline and threaded streams.
#include "cartan/device/stream.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <stdexcept>
#include <thread>
#include <vector>

#include "cartan/device/device.hpp"

namespace cartan::device {
namespace {

using Maker = std::unique_ptr<HostStream> (*)(std::string);
class HostStreams : public testing::TestWithParam<Maker> {
 protected:
  std::unique_ptr<HostStream> stream_ = GetParam()("s");
};
INSTANTIATE_TEST_SUITE_P(Kinds, HostStreams, testing::Values(&make_inline_stream, &make_threaded_stream));

TEST_P(HostStreams, RunsTasksInOrder) {
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) stream_->submit([&order, i] { order.push_back(i); });
  stream_->synchronize();
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
  EXPECT_EQ(stream_->name(), "s");
}

TEST_P(HostStreams, DropsTasksAfterAFailureAndTellsWhoWaits) {
  bool ran = false;
  const Event before = stream_->submit([] {});
  const Event failed = stream_->submit([] { throw std::runtime_error("first"); });
  const Event after = stream_->submit([&] {
    ran = true;
    throw std::runtime_error("second");
  });
  EXPECT_NO_THROW(before.wait());
  EXPECT_THROW(failed.wait(), std::runtime_error);
  EXPECT_THROW(after.wait(), std::runtime_error);
  EXPECT_TRUE(after.done());
  EXPECT_FALSE(ran);
  try {
    stream_->synchronize();
    FAIL() << "the failure was lost";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "first");
  }
}

TEST_P(HostStreams, EventsOutliveTheStream) {
  const Event event = stream_->record();
  stream_.reset();
  EXPECT_TRUE(event.done());
  EXPECT_NO_THROW(event.wait());
}

TEST_P(HostStreams, WaitForEventsOfOtherStreams) {
  const auto other = make_threaded_stream("other");
  std::promise<void> go;
  std::atomic<int> value{0};
  const Event event = other->submit([&] {
    go.get_future().wait();
    value = 1;
  });
  std::thread releaser([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    go.set_value();
  });
  int seen = -1;
  stream_->wait(event);
  stream_->submit([&] { seen = value; });
  stream_->synchronize();
  releaser.join();
  EXPECT_EQ(seen, 1);
}

TEST_P(HostStreams, InheritTheFailureOfAnEventTheyWaitFor) {
  const auto other = make_threaded_stream("other");
  const Event event = other->submit([] { throw std::runtime_error("there"); });
  bool ran = false;
  stream_->wait(event);
  stream_->submit([&] { ran = true; });
  EXPECT_THROW(stream_->synchronize(), std::runtime_error);
  EXPECT_FALSE(ran);
}

TEST(ThreadedStream, FinishesItsTasksBeforeItIsDestroyed) {
  int count = 0;
  {
    const auto stream = make_threaded_stream("s");
    for (int i = 0; i < 10; ++i) stream->submit([&] { ++count; });
  }
  EXPECT_EQ(count, 10);
}

TEST(ThreadedStream, RunsBesideItsCaller) {
  const auto stream = make_threaded_stream("s");
  std::promise<void> go;
  const Event event = stream->submit([&] { go.get_future().wait(); });
  EXPECT_FALSE(event.done());
  go.set_value();
  event.wait();
  EXPECT_TRUE(event.done());
}

TEST(Event, MadeByDefaultHasHappened) {
  const Event event;
  EXPECT_TRUE(event.done());
  EXPECT_NO_THROW(event.wait());
}

TEST(CpuDevice, CopiesInStreamOrder) {
  const auto device = make_device(DeviceKind::cpu, {.threads = 1});
  const auto stream = device->make_stream("copies");
  const std::vector<int> source{1, 2, 3};
  std::vector<int> result(3);
  const Buffer buffer = device->allocate(3 * sizeof(int), MemoryKind::io, "numbers");
  device->copy_in(buffer.data(), source.data(), buffer.size_bytes(), *stream);
  device->copy_out(result.data(), buffer.data(), buffer.size_bytes(), *stream);
  EXPECT_EQ(result, source);
}

}  // namespace
}  // namespace cartan::device
