#include <gmock/gmock.h>

#include "emu/emu_fixture.hpp"

namespace emu::testing {
namespace {

class Graphs : public InSchedules {
 protected:
  DeviceArray<int> source_{std::vector<int>(1, 1)}, between_{std::vector<int>(1, 0)},
      target_{std::vector<int>(1, 0)};
  TestStream stream_, other_;
  TestEvent fork_, join_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;

  ~Graphs() override {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
  }
  void copy(DeviceArray<int>& to, DeviceArray<int>& from, cudaStream_t stream) {
    EXPECT_EQ(cudaMemcpyAsync(to.data(), from.data(), 4, cudaMemcpyDeviceToDevice, stream), cudaSuccess);
  }
  void begin() { EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaSuccess); }
  void end() {
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph_), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&executable_, graph_, 0), cudaSuccess);
  }
  void launch() { EXPECT_EQ(cudaGraphLaunch(executable_, stream_), cudaSuccess); }
};
EMU_IN_SCHEDULES(Graphs);

TEST_P(Graphs, CapturedWorkDoesNotRun) {
  begin();
  copy(target_, source_, stream_);
  end();
  cudaStreamSynchronize(stream_);
  EXPECT_EQ(target_.host()[0], 0);
  EXPECT_NO_FINDINGS();
}

TEST_P(Graphs, RunAsOftenAsTheyAreLaunched) {
  begin();
  copy(between_, source_, stream_);
  copy(target_, between_, stream_);
  end();
  for (const int value : {5, 6}) {
    DeviceArray<int> fresh(std::vector<int>(1, value));
    copy(source_, fresh, stream_);
    launch();
    cudaStreamSynchronize(stream_);
    EXPECT_EQ(target_.host()[0], value);
  }
  EXPECT_NO_FINDINGS();
}

TEST_P(Graphs, ForkAndJoinStreams) {
  begin();
  copy(between_, source_, stream_);
  cudaEventRecord(fork_, stream_);
  cudaStreamWaitEvent(other_, fork_, 0);
  copy(target_, between_, other_);
  cudaEventRecord(join_, other_);
  cudaStreamWaitEvent(stream_, join_, 0);
  end();
  launch();
  copy(between_, target_, stream_);
  launch();
  cudaStreamSynchronize(stream_);
  EXPECT_EQ(target_.host()[0], 1);
  EXPECT_NO_FINDINGS();
}

TEST_P(Graphs, ARaceInsideIsFound) {
  begin();
  cudaEventRecord(fork_, stream_);
  copy(between_, source_, stream_);
  cudaStreamWaitEvent(other_, fork_, 0);
  copy(target_, between_, other_);
  cudaEventRecord(join_, other_);
  cudaStreamWaitEvent(stream_, join_, 0);
  end();
  launch();
  cudaStreamSynchronize(stream_);
  EXPECT_FINDING("race between streams");
}

TEST_P(Graphs, AreOrderedInTheStreamTheyAreLaunchedInOnly) {
  begin();
  copy(between_, source_, stream_);
  end();
  launch();
  copy(target_, between_, other_);
  cudaDeviceSynchronize();
  EXPECT_FINDING("race between streams");
}

TEST_P(Graphs, WorkThatIsNotJoinedIsFound) {
  begin();
  cudaEventRecord(fork_, stream_);
  cudaStreamWaitEvent(other_, fork_, 0);
  copy(target_, source_, other_);
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph_), cudaErrorStreamCaptureUnjoined);
  EXPECT_EQ(graph_, nullptr);
  EXPECT_FINDING("not joined");
  copy(target_, source_, other_);  // an ordinary stream again
  cudaDeviceSynchronize();
  EXPECT_EQ(target_.host()[0], 1);
}

TEST_P(Graphs, AHostWaitSpoilsTheCapture) {
  begin();
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorStreamCaptureUnsupported);
  EXPECT_FINDING("cudaStreamSynchronize while a stream is captured");
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph_), cudaErrorStreamCaptureInvalidated);
}

TEST_P(Graphs, AnAllocationSpoilsTheCapture) {
  begin();
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, 4), cudaErrorStreamCaptureUnsupported);
  EXPECT_FINDING("cudaMalloc while a stream is captured");
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph_), cudaErrorStreamCaptureInvalidated);
}

TEST_P(Graphs, PageableMemoryIsNotCaptured) {
  begin();
  int value = 0;
  EXPECT_EQ(cudaMemcpyAsync(target_.data(), &value, 4, cudaMemcpyHostToDevice, stream_),
            cudaErrorStreamCaptureUnsupported);
  EXPECT_FINDING("pageable");
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph_), cudaErrorStreamCaptureInvalidated);
}

TEST_P(Graphs, AnEventFromOutsideIsNotWaitedFor) {
  cudaEventRecord(fork_, other_);
  begin();
  EXPECT_EQ(cudaStreamWaitEvent(stream_, fork_, 0), cudaErrorStreamCaptureIsolation);
  EXPECT_FINDING("outside of the capture");
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph_), cudaErrorStreamCaptureInvalidated);
}

TEST_P(Graphs, TheHostDoesNotWaitForACapturedEvent) {
  begin();
  cudaEventRecord(fork_, stream_);
  EXPECT_EQ(cudaEventSynchronize(fork_), cudaErrorCapturedEvent);
  EXPECT_EQ(cudaEventQuery(fork_), cudaErrorCapturedEvent);
  end();
  EXPECT_FINDING("captured stream");
}

TEST_P(Graphs, TheNullStreamIsNotUsedMeanwhile) {
  begin();
  EXPECT_EQ(cudaMemsetAsync(target_.data(), 0, 4, nullptr), cudaErrorStreamCaptureImplicit);
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph_), cudaErrorStreamCaptureInvalidated);
  EXPECT_FINDING("while a stream is captured");
}

TEST_P(Graphs, PinnedMemoryIsReadAtEachLaunch) {
  PinnedArray<int> value(1);
  begin();
  EXPECT_EQ(cudaMemcpyAsync(target_.data(), value.data(), 4, cudaMemcpyHostToDevice, stream_), cudaSuccess);
  end();
  for (const int i : {3, 4}) {
    value[0] = i;
    launch();
    cudaStreamSynchronize(stream_);
    EXPECT_EQ(target_.host()[0], i);
  }
  EXPECT_NO_FINDINGS();
}

}  // namespace
}  // namespace emu::testing
