// Part of the tests of the cuda device that run on a real one (CARTAN_TEST_ON_GPU): where the machine has
// fewer GPUs than the test has ranks, every rank skips all of its tests, and CTest counts the program as
// skipped.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/test_device.hpp"

namespace cartan::testing {
namespace {

class EnoughGpus : public ::testing::Environment {
  void SetUp() override {
    if (on_cpu()) return;
    int gpus = 0;
    const cudaError_t state = cudaGetDeviceCount(&gpus);
    if (state == cudaErrorInsufficientDriver)
      GTEST_SKIP() << "skipped, too few GPUs: this machine has no NVIDIA driver, or one that is too old";
    if (state == cudaErrorNoDevice || (state == cudaSuccess && gpus < local_ranks()))
      GTEST_SKIP() << fmt::format("skipped, too few GPUs: {} needed, {} visible", local_ranks(), gpus);
    ASSERT_EQ(state, cudaSuccess) << cudaGetErrorString(state);
  }
};

[[maybe_unused]] const auto* const environment = ::testing::AddGlobalTestEnvironment(new EnoughGpus);

}  // namespace
}  // namespace cartan::testing
