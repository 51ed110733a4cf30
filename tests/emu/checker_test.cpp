// The access checker and the emulated block on kernels that are wrong in one way each.
#include "emu/checker.hpp"

#include <gmock/gmock.h>

#include <chrono>

#include "emu/bugs.hpp"
#include "emu/emu_fixture.hpp"
#include "emu/kernel_body.hpp"

namespace emu::testing {
namespace {

using ::testing::HasSubstr;

const Policy kPolicies[] = {
    {Order::forward, 1}, {Order::reverse, 1}, {Order::shuffled, 1}, {Order::shuffled, 2}};

class Orders : public Emulated {
 protected:
  ~Orders() override { policy = before_; }

 private:
  Policy before_ = policy;
};

class Kernels : public Orders, public ::testing::WithParamInterface<Case> {
 protected:
  /// What is found when the kernel runs.
  std::string run(const float* other_input = nullptr) {
    DeviceArray<float> in(std::vector<float>(kCaseInputs, 1.0f)), out(std::vector<float>(kCaseOutputs, 0.0f));
    TestStream stream;
    cudaLaunchConfig_t grid{};
    grid.gridDim = dim3(GetParam().blocks);
    grid.blockDim = dim3(kCaseThreads);
    grid.dynamicSmemBytes = kCaseSharedBytes;
    grid.stream = stream;
    const float* const input = other_input == nullptr ? in.data() : other_input;
    launch(&grid, GetParam().kernel, out.data(), input);
    cudaStreamSynchronize(stream);
    std::string findings = all_findings();
    reset();  // a kernel that comes to no end leaves an error
    return findings;
  }
};
INSTANTIATE_TEST_SUITE_P(, Kernels, ::testing::ValuesIn(cases()),
                         [](const auto& instance) { return std::string(instance.param.name); });

TEST_P(Kernels, AreFoundIfTheyAreWrongInEveryOrderOfThreads) {
  for (const Policy& order : kPolicies) {
    policy = order;
    const std::string findings = run();
    if (GetParam().finding.empty())
      EXPECT_EQ(findings, "");
    else
      EXPECT_THAT(findings, HasSubstr(GetParam().finding));
  }
}

TEST_P(Kernels, ThatAreRightRunUnchecked) {
  config.race = false;
  if (GetParam().finding.empty()) {
    EXPECT_EQ(run(), "");
  }
}

class Checker : public Orders {
 protected:
  Case case_named(const std::string& name) {
    for (const Case& candidate : cases())
      if (candidate.name == name) return candidate;
    throw std::invalid_argument(name);
  }
  void run(const Case& kernel, float* out, const float* in) {
    cudaLaunchConfig_t grid{};
    grid.gridDim = dim3(kernel.blocks);
    grid.blockDim = dim3(kCaseThreads);
    grid.dynamicSmemBytes = kCaseSharedBytes;
    grid.stream = stream_;
    launch(&grid, kernel.kernel, out, in);
    cudaStreamSynchronize(stream_);
  }
  TestStream stream_;
  DeviceArray<float> in_{std::vector<float>(kCaseInputs, 1.0f)}, out_{std::vector<float>(kCaseOutputs, 0.0f)};
};

TEST_F(Checker, NamesKernelBlockThreadAndLine) {
  run(case_named("WritePastTheEnd"), out_.data(), in_.data());
  EXPECT_THAT(
      all_findings(),
      ::testing::ContainsRegex("write outside of any allocation at 0x[0-9a-f]+, block 0 thread 255 in kernel "
                               "write_past_the_end, bugs.cu:[0-9]+\n"));
}

TEST_F(Checker, NamesTheLineOfTheKernelBesideThatOfAnInlinedHelper) {
  run(case_named("MisalignedPack"), out_.data(), in_.data());
  EXPECT_FINDING("in kernel misaligned_pack, bugs.cu:");
}

TEST_F(Checker, ReportsAPlaceOnceUntilTheFindingsAreTaken) {
  const Case wrong = case_named("BlocksWriteTheSame");
  for (int i = 0; i < 3; ++i) {
    run(wrong, out_.data(), in_.data());
    run(wrong, out_.data(), in_.data());
    EXPECT_EQ(take_reports().size(), 1u);
  }
}

TEST_F(Checker, FindsPointersToTheHost) {
  const std::vector<float> host(kCaseInputs);
  run(case_named("BlocksAddAtomically"), out_.data(), host.data());
  EXPECT_FINDING("device code touches host memory");
}

TEST_F(Checker, AcceptsPinnedMemoryThatTheHostWrote) {
  PinnedArray<float> pinned(kCaseInputs);
  run(case_named("BlocksAddAtomically"), out_.data(), pinned.data());
  EXPECT_NO_FINDINGS();
}

TEST_F(Checker, FindsReadsOfDeviceMemoryThatNobodyWrote) {
  DeviceArray<float> fresh(kCaseInputs);
  run(case_named("BlocksAddAtomically"), out_.data(), fresh.data());
  EXPECT_FINDING("read of device memory that was never written");
}

TEST_F(Checker, ForgetsWhatWasWrittenToFreedMemory) {
  const float* before = nullptr;
  {
    DeviceArray<float> freed(std::vector<float>(kCaseInputs, 1.0f));
    before = freed.data();
  }
  DeviceArray<float> fresh(kCaseInputs);
  ASSERT_EQ(fresh.data(), before) << "the memory is used again";
  run(case_named("BlocksAddAtomically"), out_.data(), fresh.data());
  EXPECT_FINDING("never written");
}

TEST_F(Checker, FindsUseOfFreedMemory) {
  float* freed = nullptr;
  cudaMalloc(reinterpret_cast<void**>(&freed), kCaseInputs * sizeof(float));
  cudaFree(freed);
  run(case_named("BlocksAddAtomically"), out_.data(), freed);
  EXPECT_FINDING("read outside of any allocation");
}

TEST_F(Checker, FindsKernelsOfTwoStreamsThatAreNotOrdered) {
  const Case add = case_named("BlocksAddAtomically");
  run(add, out_.data(), in_.data());
  TestStream other;
  cudaMemsetAsync(in_.data(), 0, in_.bytes(), other);
  run(add, out_.data(), in_.data());
  EXPECT_FINDING(
      "race between streams: read after write by <cudaMemsetAsync> in <kernel blocks_add_atomically>");
}

TEST_F(Checker, DescribesADeadlockByGroupsOfThreads) {
  run(case_named("HalfAWarpInAShuffle"), out_.data(), in_.data());
  const std::string findings = all_findings();
  EXPECT_THAT(findings, HasSubstr("threads 0..15: wait in shuffle at "));
  EXPECT_THAT(findings, HasSubstr(" mask 0xffffffff\n  threads 16..31: wait in __syncthreads at "));
  reset();
}

TEST_F(Checker, AllocatesLargeMemoryAtOnce) {
  using Time = std::chrono::steady_clock;
  std::chrono::duration<double> best{1};
  for (int i = 0; i < 5; ++i) {
    const auto begin = Time::now();
    void* data = nullptr;
    ASSERT_EQ(cudaMalloc(&data, std::size_t{1} << 30), cudaSuccess);
    cudaFree(data);
    best = std::min<std::chrono::duration<double>>(best, Time::now() - begin);
  }
  EXPECT_LT(best.count(), 2e-3);
}

}  // namespace
}  // namespace emu::testing
