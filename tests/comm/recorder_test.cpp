// The ring of call records.
#include "comm/recorder.hpp"

#include <gtest/gtest.h>

namespace cartan::comm {
namespace {

TEST(Recorder, IsEmptyAtFirst) {
  const Recorder recorder;
  EXPECT_TRUE(recorder.recent().empty());
  EXPECT_EQ(recorder.calls(), 0u);
}

TEST(Recorder, KeepsVerbBytesAndOrder) {
  Recorder recorder;
  recorder.close(recorder.open("all_gather", 12, 36), 0.5, true);
  recorder.close(recorder.open("barrier", 0), 0.25, false);
  const auto calls = recorder.recent();
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0].sequence, 0u);
  EXPECT_EQ(calls[0].verb, "all_gather");
  EXPECT_EQ(calls[0].bytes, 12u);
  EXPECT_EQ(calls[0].sent, 36u);
  EXPECT_EQ(calls[0].seconds, 0.5);
  EXPECT_TRUE(calls[0].done);
  EXPECT_EQ(calls[1].verb, "barrier");
  EXPECT_EQ(calls[1].sent, 0u);
  EXPECT_EQ(recorder.bytes_sent(), 36u);
  EXPECT_EQ(recorder.data_plane_seconds(), 0.5);
}

TEST(Recorder, ACallThatThrowsStaysOpen) {
  Recorder recorder;
  const auto sequence = recorder.open("broadcast", 8);
  EXPECT_THROW(timed(recorder, sequence, true, [] { throw InternalError("broken"); }), InternalError);
  EXPECT_FALSE(recorder.recent().front().done);
}

TEST(Recorder, KeepsTheLatestOfManyCalls) {
  Recorder recorder;
  const auto first = recorder.open("send", 1);
  for (std::size_t i = 0; i < Recorder::kCapacity; ++i) recorder.close(recorder.open("send", 2), 1, true);
  recorder.close(first, 100, true);  // no longer in the ring: counts in the total, touches no other record
  const auto calls = recorder.recent();
  ASSERT_EQ(calls.size(), Recorder::kCapacity);
  EXPECT_EQ(calls.front().sequence, 1u);
  EXPECT_EQ(calls.back().sequence, Recorder::kCapacity);
  for (const CallRecord& call : calls) EXPECT_EQ(call.seconds, 1);
  EXPECT_EQ(recorder.calls(), Recorder::kCapacity + 1);
  EXPECT_EQ(recorder.data_plane_seconds(), 100.0 + static_cast<double>(Recorder::kCapacity));
}

}  // namespace
}  // namespace cartan::comm
