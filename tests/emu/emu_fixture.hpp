// What the tests of the stand-ins share: buffers, streams and schedules.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "emu/emu.hpp"
#include "emu/runtime.h"

namespace emu::testing {

/// Checked, in the schedule that the test chooses; what a test leaves behind is gone before the next.
class Emulated : public ::testing::Test {
 protected:
  Emulated() : before_(config) {
    config = {};
    config.race = true;
    config.timeout_s = 2;
  }
  ~Emulated() override {
    EXPECT_NO_FINDINGS();
    reset();
    config = before_;
  }
  void use(Schedule schedule, unsigned seed = 1) {
    config.schedule = schedule;
    config.seed = seed;
    reset();
  }

 private:
  Config before_;
};

/// The same in every schedule.
struct Timing {
  Schedule schedule;
  unsigned seed;
};
inline std::string name_of(const Timing& timing) {
  switch (timing.schedule) {
    case Schedule::eager:
      return "eager";
    case Schedule::lazy:
      return "lazy";
    default:
      return "random" + std::to_string(timing.seed);
  }
}
class InSchedules : public Emulated, public ::testing::WithParamInterface<Timing> {
 protected:
  InSchedules() { use(GetParam().schedule, GetParam().seed); }
};
inline const Timing kTimings[] = {{Schedule::eager, 1},
                                  {Schedule::lazy, 1},
                                  {Schedule::random, 1},
                                  {Schedule::random, 2},
                                  {Schedule::random, 3}};

#define EMU_IN_SCHEDULES(suite)                                                           \
  INSTANTIATE_TEST_SUITE_P(Schedules, suite, ::testing::ValuesIn(emu::testing::kTimings), \
                           [](const auto& timing) { return emu::testing::name_of(timing.param); })

/// An array in device memory.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t count) : count_(count) {
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)), cudaSuccess);
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    EXPECT_EQ(cudaMemcpy(data_, values.data(), bytes(), cudaMemcpyHostToDevice), cudaSuccess);
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  T* data() { return data_; }
  std::size_t bytes() const { return count_ * sizeof(T); }
  std::vector<T> host() {
    std::vector<T> values(count_);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, bytes(), cudaMemcpyDeviceToHost), cudaSuccess);
    return values;
  }

 private:
  T* data_ = nullptr;
  std::size_t count_;
};

/// An array in pinned memory.
template <class T>
class PinnedArray {
 public:
  explicit PinnedArray(std::size_t count) : count_(count) {
    EXPECT_EQ(cudaMallocHost(reinterpret_cast<void**>(&data_), count * sizeof(T)), cudaSuccess);
  }
  PinnedArray(const PinnedArray&) = delete;
  PinnedArray& operator=(const PinnedArray&) = delete;
  ~PinnedArray() { cudaFreeHost(data_); }

  T* data() { return data_; }
  T& operator[](std::size_t i) { return data_[i]; }
  std::size_t bytes() const { return count_ * sizeof(T); }

 private:
  T* data_ = nullptr;
  std::size_t count_;
};

class TestStream {
 public:
  TestStream() { EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess); }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;
  ~TestStream() { cudaStreamDestroy(stream_); }
  operator cudaStream_t() const { return stream_; }  // NOLINT: as the runtime's functions take it

 private:
  cudaStream_t stream_ = nullptr;
};

class TestEvent {
 public:
  TestEvent() { EXPECT_EQ(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), cudaSuccess); }
  TestEvent(const TestEvent&) = delete;
  TestEvent& operator=(const TestEvent&) = delete;
  ~TestEvent() { cudaEventDestroy(event_); }
  operator cudaEvent_t() const { return event_; }  // NOLINT

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace emu::testing
