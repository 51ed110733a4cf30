#include <gmock/gmock.h>

#include "emu/emu_fixture.hpp"

namespace emu::testing {
namespace {

using ::testing::StrEq;

using Errors = Emulated;

TEST_F(Errors, NoDriverIsSaidByEveryCall) {
  config.has_driver = false;
  int count = -1;
  void* data = nullptr;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver);
  EXPECT_EQ(count, 0);
  EXPECT_EQ(cudaMalloc(&data, 1), cudaErrorInsufficientDriver);
  EXPECT_THAT(cudaGetErrorName(cudaErrorInsufficientDriver), StrEq("cudaErrorInsufficientDriver"));
}

TEST_F(Errors, AMachineHasAsManyGpusAsItIsToldTo) {
  int count = -1;
  cudaDeviceProp properties;
  config.gpus = 0;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorNoDevice);
  config.gpus = 3;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  EXPECT_EQ(count, 3);
  EXPECT_EQ(cudaSetDevice(2), cudaSuccess);
  EXPECT_EQ(cudaSetDevice(3), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetDeviceProperties(&properties, 2), cudaSuccess);
  EXPECT_THAT(properties.name, StrEq("emulated"));
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
}

TEST_F(Errors, TheNamedCallFailsOnceAndTheErrorIsNotSticky) {
  config.failure = {"cudaMalloc", 2};
  void *first = nullptr, *second = nullptr;
  EXPECT_EQ(cudaMalloc(&first, 8), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&second, 8), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaMalloc(&second, 8), cudaSuccess);
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  cudaFree(first);
  cudaFree(second);
}

TEST_F(Errors, AnOperationThatFailsWhileItRunsSticks) {
  DeviceArray<int> array(1);
  TestStream stream;
  enqueue(stream, "an operation that fails", [] {
    set_sticky_error(cudaErrorIllegalAddress);
    return Step::done;
  });
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaMemsetAsync(array.data(), 0, 4, stream), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  reset();
}

TEST_F(Errors, WhatNeverEndsIsADeadlock) {
  config.timeout_s = 0.05;
  TestStream stream;
  enqueue(stream, "an operation that waits for ever", [] { return Step::pending; });
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorLaunchTimeout);
  EXPECT_FINDING("an operation that waits for ever (waits for peers)");
}

}  // namespace
}  // namespace emu::testing
