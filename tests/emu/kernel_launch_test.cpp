// Kernels as operations of a stream. They are compiled here without the checker's callbacks.
#include <gmock/gmock.h>
#include "emu/device.h"

#include "emu/emu_fixture.hpp"

namespace emu::testing {
namespace {

__global__ void add_index(int* values, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) values[i] += i;
}

class Launches : public InSchedules {
 protected:
  static constexpr int kCount = 100;

  cudaError_t launch(int* values, unsigned threads = 32, std::size_t shared_bytes = 0) {
    cudaLaunchConfig_t grid{};
    grid.gridDim = dim3((kCount + threads - 1) / threads);
    grid.blockDim = dim3(threads);
    grid.dynamicSmemBytes = shared_bytes;
    grid.stream = stream_;
    return cudaLaunchKernelEx(&grid, add_index, values, static_cast<int>(kCount));
  }
  cudaError_t allow(int shared_bytes) {
    return cudaFuncSetAttribute(reinterpret_cast<const void*>(add_index),
                                cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  }

  TestStream stream_;
};
EMU_IN_SCHEDULES(Launches);

TEST_P(Launches, RunEveryThread) {
  DeviceArray<int> values(std::vector<int>(kCount, 5));
  EXPECT_EQ(launch(values.data()), cudaSuccess);
  cudaStreamSynchronize(stream_);
  for (int i = 0; i < kCount; ++i) EXPECT_EQ(values.host()[static_cast<std::size_t>(i)], 5 + i);
  EXPECT_NO_FINDINGS();
}

TEST_P(Launches, MayUsePinnedMemory) {
  PinnedArray<int> values(kCount);
  for (std::size_t i = 0; i < kCount; ++i) values[i] = 1;
  EXPECT_EQ(launch(values.data()), cudaSuccess);
  cudaStreamSynchronize(stream_);
  EXPECT_EQ(values[99], 100);
  EXPECT_NO_FINDINGS();
}

TEST_P(Launches, OfBlocksThatAreTooLargeAreRefused) {
  DeviceArray<int> values(std::vector<int>(kCount, 0));
  EXPECT_EQ(launch(values.data(), 1025), cudaErrorInvalidConfiguration);
  EXPECT_FINDING("a block that is too large");
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_P(Launches, AskForMuchSharedMemoryFirst) {
  DeviceArray<int> values(std::vector<int>(kCount, 0));
  allow(48 << 10);
  EXPECT_EQ(launch(values.data(), 32, 64 << 10), cudaErrorInvalidConfiguration);
  EXPECT_FINDING("cudaFuncSetAttribute");
  EXPECT_EQ(allow(228 << 10), cudaErrorInvalidValue);
  EXPECT_EQ(allow(64 << 10), cudaSuccess);
  EXPECT_EQ(launch(values.data(), 32, 64 << 10), cudaSuccess);
  cudaStreamSynchronize(stream_);
  EXPECT_NO_FINDINGS();
}

TEST_P(Launches, ThatFailStick) {
  DeviceArray<int> values(std::vector<int>(kCount, 0));
  config.failure = {"kernel", 2};
  launch(values.data());
  launch(values.data());
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorIllegalAddress);
  EXPECT_EQ(launch(values.data()), cudaErrorIllegalAddress);
  reset();
}

TEST_P(Launches, CanBeCaptured) {
  DeviceArray<int> values(std::vector<int>(kCount, 0));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal);
  EXPECT_EQ(launch(values.data()), cudaSuccess);
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  for (int i = 0; i < 3; ++i) cudaGraphLaunch(executable, stream_);
  cudaStreamSynchronize(stream_);
  EXPECT_EQ(values.host()[7], 21);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  EXPECT_NO_FINDINGS();
}

}  // namespace
}  // namespace emu::testing
