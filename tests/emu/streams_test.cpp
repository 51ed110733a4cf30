#include <gmock/gmock.h>

#include "emu/emu_fixture.hpp"

namespace emu::testing {
namespace {

constexpr int kCount = 1000;

class Streams : public InSchedules {
 protected:
  DeviceArray<int> source_{std::vector<int>(kCount, 7)}, between_{std::vector<int>(kCount, 1)},
      target_{kCount};
  TestStream first_, second_;
  TestEvent event_;

  void copy(DeviceArray<int>& to, DeviceArray<int>& from, cudaStream_t stream) {
    EXPECT_EQ(cudaMemcpyAsync(to.data(), from.data(), from.bytes(), cudaMemcpyDeviceToDevice, stream),
              cudaSuccess);
  }
};
EMU_IN_SCHEDULES(Streams);

TEST_P(Streams, WorkOfOneStreamRunsInItsOrder) {
  copy(between_, source_, first_);
  copy(target_, between_, first_);
  EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
  EXPECT_EQ(target_.host(), std::vector<int>(kCount, 7));
  EXPECT_NO_FINDINGS();
}

TEST_P(Streams, AnEventOrdersTwoStreams) {
  copy(between_, source_, first_);
  cudaEventRecord(event_, first_);
  cudaStreamWaitEvent(second_, event_, 0);
  copy(target_, between_, second_);
  EXPECT_EQ(cudaStreamSynchronize(second_), cudaSuccess);
  EXPECT_EQ(target_.host(), std::vector<int>(kCount, 7));
  EXPECT_NO_FINDINGS();
}

TEST_P(Streams, AReadWithoutItsEventIsFound) {
  copy(between_, source_, first_);
  copy(target_, between_, second_);
  cudaDeviceSynchronize();
  EXPECT_FINDING("race between streams");
}

TEST_P(Streams, AWriteWithoutItsEventIsFound) {
  copy(target_, between_, first_);
  copy(between_, source_, second_);
  cudaDeviceSynchronize();
  EXPECT_FINDING("race between streams");
}

TEST_P(Streams, AnEventThatWasRecordedTooEarlyIsFound) {
  cudaEventRecord(event_, first_);
  copy(between_, source_, first_);
  cudaStreamWaitEvent(second_, event_, 0);
  copy(target_, between_, second_);
  cudaDeviceSynchronize();
  EXPECT_FINDING("race between streams");
}

TEST_P(Streams, AWaitUsesTheLastRecordBeforeIt) {
  cudaEventRecord(event_, first_);
  copy(between_, source_, first_);
  cudaEventRecord(event_, first_);
  cudaStreamWaitEvent(second_, event_, 0);
  cudaEventRecord(event_, first_);
  copy(target_, between_, second_);
  cudaDeviceSynchronize();
  EXPECT_NO_FINDINGS();
}

TEST_P(Streams, OrderIsTransitive) {
  TestStream third;
  TestEvent other;
  copy(between_, source_, first_);
  cudaEventRecord(event_, first_);
  cudaStreamWaitEvent(third, event_, 0);
  cudaEventRecord(other, third);
  cudaStreamWaitEvent(second_, other, 0);
  copy(target_, between_, second_);
  cudaDeviceSynchronize();
  EXPECT_NO_FINDINGS();
}

TEST_P(Streams, TheHostOrdersStreamsByWaiting) {
  copy(between_, source_, first_);
  cudaEventRecord(event_, first_);
  EXPECT_EQ(cudaEventSynchronize(event_), cudaSuccess);
  copy(target_, between_, second_);
  cudaDeviceSynchronize();
  EXPECT_NO_FINDINGS();
}

TEST_P(Streams, AnEventThatTheHostSawDoneOrdersStreams) {
  copy(between_, source_, first_);
  cudaEventRecord(event_, first_);
  while (cudaEventQuery(event_) == cudaErrorNotReady) {
  }
  copy(target_, between_, second_);
  cudaDeviceSynchronize();
  EXPECT_NO_FINDINGS();
}

TEST_P(Streams, AnEventThatWasNeverRecordedHoldsNothingUp) {
  EXPECT_EQ(cudaEventQuery(event_), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(event_), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(second_, event_, 0), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(second_), cudaSuccess);
  EXPECT_NO_FINDINGS();
}

TEST_P(Streams, WorkOfADestroyedStreamStillRuns) {
  cudaStream_t brief = nullptr;
  cudaStreamCreateWithFlags(&brief, cudaStreamNonBlocking);
  copy(target_, source_, brief);
  EXPECT_EQ(cudaStreamDestroy(brief), cudaSuccess);
  cudaDeviceSynchronize();
  EXPECT_EQ(target_.host(), std::vector<int>(kCount, 7));
  EXPECT_NO_FINDINGS();
}

TEST_P(Streams, AStreamThatTakesADestroyedOnesNumberIsNotOrderedAfterIt) {
  cudaStream_t brief = nullptr;
  cudaStreamCreateWithFlags(&brief, cudaStreamNonBlocking);
  copy(between_, source_, brief);
  cudaStreamDestroy(brief);
  cudaStreamCreateWithFlags(&brief, cudaStreamNonBlocking);
  copy(target_, between_, brief);
  cudaDeviceSynchronize();
  cudaStreamDestroy(brief);
  EXPECT_FINDING("race between streams");
}

TEST_P(Streams, ABlockingStreamIsFound) {
  cudaStream_t blocking = nullptr;
  cudaStreamCreateWithFlags(&blocking, cudaStreamDefault);
  cudaStreamDestroy(blocking);
  EXPECT_FINDING("cudaStreamNonBlocking");
}

TEST_P(Streams, UseOfADestroyedStreamIsFound) {
  cudaStream_t brief = nullptr;
  cudaStreamCreateWithFlags(&brief, cudaStreamNonBlocking);
  cudaStreamDestroy(brief);
  EXPECT_EQ(cudaMemsetAsync(target_.data(), 0, 4, brief), cudaErrorInvalidResourceHandle);
  EXPECT_FINDING("destroyed");
}

using Lazily = Emulated;

TEST_F(Lazily, NothingRunsBeforeTheHostWaitsForIt) {
  use(Schedule::lazy);
  DeviceArray<int> target(std::vector<int>(1, 5));
  TestStream stream, other;
  cudaMemsetAsync(target.data(), 0, sizeof(int), stream);
  cudaStreamSynchronize(other);
  EXPECT_EQ(*target.data(), 5);
  cudaStreamSynchronize(stream);
  EXPECT_EQ(*target.data(), 0);
  EXPECT_NO_FINDINGS();
}

}  // namespace
}  // namespace emu::testing
