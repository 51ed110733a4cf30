#include <gmock/gmock.h>

#include <cmath>

#include "emu/emu_fixture.hpp"

namespace emu::testing {
namespace {

class Memory : public InSchedules {
 protected:
  TestStream stream_, other_;
};
EMU_IN_SCHEDULES(Memory);

void* allocate(std::size_t bytes) {
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, bytes), cudaSuccess);
  return data;
}

TEST_P(Memory, IsAccountedToTheByte) {
  const std::size_t before = device_bytes_in_use();
  void* const odd = allocate(1001);
  reset_device_bytes_peak();
  void* const large = allocate(std::size_t{300} << 20);
  EXPECT_EQ(device_bytes_in_use(), before + 1001 + (std::size_t{300} << 20));
  EXPECT_EQ(cudaFree(large), cudaSuccess);
  EXPECT_EQ(device_bytes_in_use(), before + 1001);
  EXPECT_EQ(device_bytes_peak(), before + 1001 + (std::size_t{300} << 20));
  EXPECT_EQ(cudaFree(odd), cudaSuccess);
  EXPECT_EQ(device_bytes_in_use(), before);
  EXPECT_NO_FINDINGS();
}

TEST_P(Memory, HasAnEnd) {
  config.device_bytes = device_bytes_in_use() + 1000;
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, 1001), cudaErrorMemoryAllocation);
  EXPECT_EQ(data, nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaMallocAsync(&data, 1000, stream_), cudaSuccess);
  EXPECT_EQ(cudaFreeAsync(data, stream_), cudaSuccess);
  cudaDeviceSynchronize();
  EXPECT_NO_FINDINGS();
}

TEST_P(Memory, FreshSmallAllocationsReadAsNaN) {
  auto* const data = static_cast<float*>(allocate(64));
  EXPECT_TRUE(std::isnan(data[0]) && std::isnan(data[15]));
  cudaFree(data);
}

TEST_P(Memory, AReadOfWhatWasNeverWrittenIsFound) {
  DeviceArray<int> fresh(100), target(100);
  cudaMemcpyAsync(target.data(), fresh.data(), fresh.bytes(), cudaMemcpyDeviceToDevice, stream_);
  cudaDeviceSynchronize();
  EXPECT_FINDING("never written");
}

TEST_P(Memory, OfTheStreamThatAllocatedItIsThereInItsOrder) {
  void* data = nullptr;
  cudaMallocAsync(&data, 4096, stream_);
  cudaMemsetAsync(data, 0, 4096, stream_);
  cudaFreeAsync(data, stream_);
  cudaDeviceSynchronize();
  EXPECT_NO_FINDINGS();
}

TEST_P(Memory, OfAnotherStreamIsFound) {
  void* data = nullptr;
  cudaMallocAsync(&data, 4096, stream_);
  cudaMemsetAsync(data, 0, 4096, other_);
  cudaDeviceSynchronize();
  EXPECT_FINDING("race between streams");
  cudaFreeAsync(data, stream_);
  cudaDeviceSynchronize();
}

TEST_P(Memory, ThatAnotherStreamStillUsesIsNotFreed) {
  void* data = nullptr;
  cudaMallocAsync(&data, 4096, stream_);
  cudaStreamSynchronize(stream_);
  cudaMemsetAsync(data, 0, 4096, other_);
  cudaFreeAsync(data, stream_);
  cudaDeviceSynchronize();
  EXPECT_THAT(all_findings(), ::testing::AnyOf(::testing::HasSubstr("race between streams"),
                                               ::testing::HasSubstr("outside of any allocation")));
}

TEST_P(Memory, IsFreedOnce) {
  void* data = nullptr;
  cudaMallocAsync(&data, 10, stream_);
  EXPECT_EQ(cudaFreeAsync(data, stream_), cudaSuccess);
  EXPECT_EQ(cudaFreeAsync(data, stream_), cudaErrorInvalidValue);
  EXPECT_FINDING("cudaFreeAsync");
  EXPECT_EQ(cudaFree(data), cudaErrorInvalidValue);
  EXPECT_FINDING("cudaFree");
}

TEST_P(Memory, CopiesStayInsideOfAllocations) {
  DeviceArray<int> ten(std::vector<int>(10, 1)), twenty(std::vector<int>(20, 2));
  EXPECT_EQ(cudaMemcpyAsync(ten.data(), twenty.data(), 44, cudaMemcpyDeviceToDevice, stream_),
            cudaErrorInvalidValue);
  EXPECT_FINDING("beyond an allocation");
  EXPECT_EQ(cudaMemset2DAsync(ten.data(), 16, 0, 12, 3, stream_), cudaErrorInvalidValue);
  EXPECT_FINDING("not in one allocation");
}

TEST_P(Memory, CopiesGoWhereTheirKindSays) {
  DeviceArray<int> there(std::vector<int>(4, 1));
  int here[4] = {};
  EXPECT_EQ(cudaMemcpy(here, there.data(), 16, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_FINDING("kind");
}

TEST_P(Memory, FillsOfRowsLeaveWhatIsBetween) {
  DeviceArray<unsigned char> bytes(std::vector<unsigned char>(12, 9));
  EXPECT_EQ(cudaMemset2DAsync(bytes.data(), 5, 1, 2, 3, stream_), cudaSuccess);
  cudaStreamSynchronize(stream_);
  EXPECT_EQ(bytes.host(), (std::vector<unsigned char>{1, 1, 9, 9, 9, 1, 1, 9, 9, 9, 1, 1}));
  EXPECT_NO_FINDINGS();
}

TEST_P(Memory, PinnedBytesTravelBothWays) {
  PinnedArray<int> out(100), back(100);
  DeviceArray<int> there(100);
  for (int i = 0; i < 100; ++i) out[static_cast<std::size_t>(i)] = i;
  cudaMemcpyAsync(there.data(), out.data(), out.bytes(), cudaMemcpyHostToDevice, stream_);
  cudaMemcpyAsync(back.data(), there.data(), back.bytes(), cudaMemcpyDeviceToHost, stream_);
  cudaStreamSynchronize(stream_);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(back[static_cast<std::size_t>(i)], i);
  EXPECT_NO_FINDINGS();
}

TEST_P(Memory, APinnedBufferMayBeReadAndThenWrittenInOneStream) {
  PinnedArray<int> buffer(1);
  DeviceArray<int> first(1), second(std::vector<int>(1, 2));
  buffer[0] = 1;
  cudaMemcpyAsync(first.data(), buffer.data(), 4, cudaMemcpyHostToDevice, stream_);
  cudaMemcpyAsync(buffer.data(), second.data(), 4, cudaMemcpyDeviceToHost, stream_);
  cudaStreamSynchronize(stream_);
  EXPECT_EQ(first.host()[0], 1);
  EXPECT_EQ(buffer[0], 2);
  EXPECT_NO_FINDINGS();
}

TEST_P(Memory, ARaceForAPinnedBufferIsFound) {
  PinnedArray<int> buffer(1);
  DeviceArray<int> first(1), second(std::vector<int>(1, 2));
  buffer[0] = 1;
  cudaMemcpyAsync(first.data(), buffer.data(), 4, cudaMemcpyHostToDevice, stream_);
  cudaMemcpyAsync(buffer.data(), second.data(), 4, cudaMemcpyDeviceToHost, other_);
  cudaDeviceSynchronize();
  EXPECT_FINDING("race between streams");
}

using LateMemory = Emulated;

TEST_F(LateMemory, APinnedSourceThatChangesTooEarlyIsFound) {
  use(Schedule::lazy);
  TestStream stream;
  PinnedArray<int> buffer(1);
  DeviceArray<int> there(1);
  buffer[0] = 1;
  cudaMemcpyAsync(there.data(), buffer.data(), 4, cudaMemcpyHostToDevice, stream);
  buffer[0] = 2;
  cudaStreamSynchronize(stream);
  EXPECT_FINDING("was changed while a copy");
}

TEST_F(LateMemory, APinnedSourceMayBeWrittenByAnEarlierOperation) {
  use(Schedule::lazy);
  TestStream stream;
  PinnedArray<int> buffer(1);
  DeviceArray<int> from(std::vector<int>(1, 7)), there(1);
  buffer[0] = 1;
  cudaMemcpyAsync(buffer.data(), from.data(), 4, cudaMemcpyDeviceToHost, stream);
  cudaMemcpyAsync(there.data(), buffer.data(), 4, cudaMemcpyHostToDevice, stream);
  cudaStreamSynchronize(stream);
  EXPECT_EQ(there.host(), std::vector<int>(1, 7));
  EXPECT_NO_FINDINGS();
}

TEST_F(LateMemory, APinnedTargetReadsAsNaNUntilItsCopyRan) {
  use(Schedule::lazy);
  TestStream stream;
  PinnedArray<float> buffer(1);
  DeviceArray<float> there(std::vector<float>(1, 3.0f));
  buffer[0] = 1;
  cudaMemcpyAsync(buffer.data(), there.data(), 4, cudaMemcpyDeviceToHost, stream);
  EXPECT_TRUE(std::isnan(buffer[0]));
  cudaStreamSynchronize(stream);
  EXPECT_EQ(buffer[0], 3.0f);
  EXPECT_NO_FINDINGS();
}

TEST_F(LateMemory, APageableSourceIsFreeAtOnceAndATargetIsThereAtOnce) {
  use(Schedule::lazy);
  TestStream stream;
  DeviceArray<int> there(1);
  int value = 1;
  cudaMemcpyAsync(there.data(), &value, 4, cudaMemcpyHostToDevice, stream);
  value = 2;
  cudaMemcpyAsync(&value, there.data(), 4, cudaMemcpyDeviceToHost, stream);
  EXPECT_EQ(value, 1);
  EXPECT_NO_FINDINGS();
}

}  // namespace
}  // namespace emu::testing
