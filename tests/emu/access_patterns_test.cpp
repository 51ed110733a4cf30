#include "emu/access_patterns.hpp"

#include <gmock/gmock.h>

#include "emu/emu_fixture.hpp"
#include "emu/kernel_body.hpp"
#include "emu/patterns.hpp"

namespace emu::testing {
namespace {

class AccessPatterns : public Emulated {
 protected:
  AccessPatterns() {
    config.profile = true;
    forget_patterns();
  }
  ~AccessPatterns() override {
    EXPECT_NO_FINDINGS();
    forget_patterns();
  }
  void run(PatternKernel kernel, unsigned threads = kPatternThreads) {
    cudaLaunchConfig_t grid{};
    grid.gridDim = dim3(1);
    grid.blockDim = dim3(threads);
    grid.stream = stream_;
    EXPECT_EQ(launch(&grid, kernel, out_.data(), in_.data()), cudaSuccess);
    cudaStreamSynchronize(stream_);
  }

  TestStream stream_;
  DeviceArray<float> in_{std::vector<float>(1024, 1.0f)}, out_{1024};
};

TEST_F(AccessPatterns, PacksMoveSixteenSectorsARequest) {
  run(copy_packs);
  EXPECT_EQ(sectors_per_request("copy_packs_kernel"), 16.0);
  EXPECT_EQ(sector_excess("copy_packs_kernel"), 1.0);
  EXPECT_EQ(bytes_per_access("copy_packs_kernel"), 16.0);
  EXPECT_EQ(bytes_moved("copy_packs_kernel"), 2u * 16 * kPatternThreads);
}

TEST_F(AccessPatterns, LaunchesAddUp) {
  for (int i = 0; i < 3; ++i) run(copy_packs);
  EXPECT_EQ(bytes_moved("copy_packs_kernel"), 3u * 2 * 16 * kPatternThreads);
}

TEST_F(AccessPatterns, StridesMoveASectorForEachLane) {
  run(copy_strided);
  EXPECT_EQ(sectors_per_request("copy_strided_kernel"), 32.0);
  EXPECT_EQ(bytes_per_access("copy_strided_kernel"), 4.0);
  EXPECT_EQ(sector_excess("copy_strided_kernel"), (32.0 + 4.0) / (4.0 + 4.0));
}

TEST_F(AccessPatterns, AShiftCostsASectorMore) {
  run(copy_shifted);
  EXPECT_EQ(sectors_per_request("copy_shifted_kernel"), 5.0);
}

TEST_F(AccessPatterns, ColumnsOfATileMeetInOneBank) {
  run(transpose_with_conflicts, 32);
  EXPECT_EQ(bank_passes("transpose_kernel"), 32.0);
}

TEST_F(AccessPatterns, PaddingSpreadsColumnsOverBanks) {
  run(transpose_padded, 32);
  EXPECT_EQ(bank_passes("transpose_kernel"), 1.0);
}

TEST_F(AccessPatterns, PacksInOrderHaveNoConflicts) {
  run(copy_packs_through_shared);
  EXPECT_EQ(bank_passes("copy_packs_through_shared_kernel"), 1.0);
}

TEST_F(AccessPatterns, AsynchronousCopiesCountInBothMemories) {
  run(copy_packs_async);
  EXPECT_EQ(bytes_moved("copy_packs_async_kernel"), 16u * (8 + kPatternThreads));
  EXPECT_EQ(sector_bytes_moved("copy_packs_async_kernel"), 32u * 8 + 16 * kPatternThreads);
  EXPECT_EQ(sector_excess("copy_packs_async_kernel"), (8.0 + 32.0) / (4.0 + 32.0));
  EXPECT_EQ(bank_passes("copy_packs_async_kernel"), 1.0);
}

TEST_F(AccessPatterns, BytesThatLanesShareCountOnce) {
  run(copy_first);
  EXPECT_EQ(sector_excess("copy_first_kernel"), 1.0);
  EXPECT_EQ(sector_bytes_moved("copy_first_kernel"), 2u * 32 + 4 * kPatternThreads);
}

TEST_F(AccessPatterns, HaveTheLinesOfTheSource) {
  run(copy_strided);
  const std::vector<AccessPattern> patterns = access_patterns();
  ASSERT_EQ(patterns.size(), 2u);
  for (const AccessPattern& pattern : patterns) {
    EXPECT_EQ(pattern.kernel, "copy_strided_kernel");
    EXPECT_THAT(pattern.line, ::testing::StartsWith("patterns.cu:"));
    EXPECT_TRUE(pattern.is_global);
    EXPECT_EQ(pattern.requests, 2u);
    EXPECT_EQ(pattern.accesses, kPatternThreads);
  }
}

TEST_F(AccessPatterns, OfAKernelThatDidNotRunAreAnError) {
  run(copy_packs);
  try {
    bytes_moved("copy_pack");
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("copy_packs_kernel"));
  }
}

TEST_F(AccessPatterns, AreNotCountedUnasked) {
  config.profile = false;
  run(copy_packs);
  EXPECT_TRUE(access_patterns().empty());
}

}  // namespace
}  // namespace emu::testing
