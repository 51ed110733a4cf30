// The ledger, buffers and views.
#include "cartan/device/memory.hpp"

#include <gtest/gtest.h>

#include <cstdint>

#include "cartan/core/error.hpp"
#include "cartan/device/device.hpp"

namespace cartan::device {
namespace {

TEST(MemoryLedger, RemembersTheKindsAtTheMomentOfTheLargestTotal) {
  MemoryLedger ledger;
  ledger.add(MemoryKind::parameters, 100);
  ledger.add(MemoryKind::activations, 50);
  ledger.remove(MemoryKind::activations, 50);
  ledger.add(MemoryKind::workspace, 20);
  EXPECT_EQ(ledger.current().total(), 120u);
  EXPECT_EQ(ledger.peak().total(), 150u);
  EXPECT_EQ(ledger.peak().of(MemoryKind::activations), 50u);
  EXPECT_EQ(ledger.peak().of(MemoryKind::workspace), 0u);
}

TEST(Buffer, ReleasesAndUnbooksOnce) {
  MemoryLedger ledger;
  int released = 0;
  const auto release = [&](void*) { ++released; };
  char byte = 0;
  {
    Buffer a(&byte, 10, MemoryKind::io, ledger, release);
    Buffer b(std::move(a));
    EXPECT_EQ(a.data(), nullptr);  // NOLINT(bugprone-use-after-move): that is the test
    EXPECT_EQ(b.data(), &byte);
    Buffer c(&byte, 5, MemoryKind::gradients, ledger, release);
    EXPECT_EQ(ledger.current().total(), 15u);
    c = std::move(b);  // the 5 bytes go, the 10 move
    EXPECT_EQ(released, 1);
    EXPECT_EQ(ledger.current().of(MemoryKind::gradients), 0u);
    EXPECT_EQ(ledger.current().of(MemoryKind::io), 10u);
    EXPECT_EQ(c.size_bytes(), 10u);
  }
  EXPECT_EQ(released, 2);
  EXPECT_EQ(ledger.current().total(), 0u);
}

TEST(MemoryKind, HasDistinctNames) {
  EXPECT_EQ(name_of(MemoryKind::parameters), "parameters");
  EXPECT_EQ(name_of(MemoryKind::io), "io");
  EXPECT_NE(name_of(MemoryKind::moments), name_of(MemoryKind::gradients));
}

TEST(View, BlocksPointIntoTheirParent) {
  float data[12] = {};
  const Matrix m = as_matrix(data, DType::f32, 3, 4);
  EXPECT_EQ(m.row_block(1, 2).data, data + 4);
  EXPECT_EQ(m.row_block(3, 0).rows, 0);
  const Matrix columns = m.col_block(2, 2);
  EXPECT_EQ(columns.data, data + 2);
  EXPECT_EQ(columns.stride, 4);
  EXPECT_EQ(columns.row_block(1, 1).data, data + 6);
  EXPECT_EQ((Vector{data, DType::bf16, 12}.slice(2, 3).data), static_cast<void*>(data + 1));
  EXPECT_EQ(ConstMatrix(m).row_block(2, 1).data, data + 8);
}

TEST(View, RefusesBlocksOutsideTheParent) {
  float data[12] = {};
  const Matrix m = as_matrix(data, DType::f32, 3, 4);
  EXPECT_THROW(m.row_block(2, 2), InternalError);
  EXPECT_THROW(m.col_block(-1, 2), InternalError);
  EXPECT_THROW((Vector{data, DType::f32, 12}.slice(12, 1)), InternalError);
}

TEST(CpuDevice, BooksAllocationsByKindAndKeepsThePeak) {
  const auto device = make_device(DeviceKind::cpu, {.threads = 1});
  const std::size_t scratch = device->ledger().current().of(MemoryKind::workspace);
  EXPECT_GT(scratch, 0u);
  {
    const Buffer small = device->allocate(100, MemoryKind::activations, "small");
    const Buffer large = device->allocate(std::size_t{5} << 20, MemoryKind::activations, "large");
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(small.data()) % 64, 0u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(large.data()) % 64, 0u);
    large.as<char>()[large.size_bytes() - 1] = 1;
  }
  EXPECT_EQ(device->ledger().current().total(), scratch);
  EXPECT_EQ(device->ledger().peak().of(MemoryKind::activations), 100 + (std::size_t{5} << 20));
}

TEST(CpuDevice, AllocatesNothingForZeroBytes) {
  const auto device = make_device(DeviceKind::cpu, {.threads = 1});
  EXPECT_EQ(device->allocate(0, MemoryKind::io, "nothing").size_bytes(), 0u);
}

TEST(CpuDevice, NamesWhatItCannotAllocate) {
  const auto device = make_device(DeviceKind::cpu, {.threads = 1});
  try {
    device->allocate(SIZE_MAX - 5, MemoryKind::moments, "exp_avg of unit 3");
    FAIL() << "an impossible allocation succeeded";
  } catch (const EnvironmentError& error) {
    EXPECT_NE(std::string(error.what()).find("exp_avg of unit 3"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("in use"), std::string::npos) << error.what();
  }
}

TEST(Device, KindsHaveNames) {
  EXPECT_EQ(device_kind_from_name("cpu"), DeviceKind::cpu);
  EXPECT_EQ(device_kind_from_name("cuda"), DeviceKind::cuda);
  EXPECT_EQ(device_kind_from_name("sim"), DeviceKind::sim);
  EXPECT_THROW(device_kind_from_name("gpu"), ConfigError);
}

TEST(Device, SaysWhichCpuAndHowManyThreads) {
  const auto device = make_device(DeviceKind::cpu, {.threads = 3});
  EXPECT_EQ(device->kind(), DeviceKind::cpu);
  EXPECT_EQ(device->description().rfind("cpu: ", 0), 0u);
  EXPECT_NE(device->description().find("3 threads"), std::string::npos) << device->description();
}

TEST(Device, RefusesNegativeThreads) {
  EXPECT_THROW(make_device(DeviceKind::cpu, {.threads = -1}), ConfigError);
}

}  // namespace
}  // namespace cartan::device
