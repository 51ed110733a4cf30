#include "cartan/core/scratch_mapping.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "cartan/core/error.hpp"

namespace cartan {
namespace {

TEST(ScratchMapping, IsZeroWritableAndLeavesNoFile) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "scratch-mapping";
  std::filesystem::create_directory(folder);
  constexpr std::size_t kBytes = 3 * 4096 + 5;
  auto* const data = static_cast<unsigned char*>(map_scratch(folder, kBytes));
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  for (std::size_t i = 0; i < kBytes; ++i) ASSERT_EQ(data[i], 0);
  std::memset(data, 7, kBytes);
  EXPECT_EQ(data[kBytes - 1], 7);
  unmap_scratch(data, kBytes);
  EXPECT_TRUE(std::filesystem::remove(folder));
}

TEST(ScratchMapping, NamesFolderAndReason) {
  try {
    map_scratch("no/such/folder", 10);
    FAIL() << "mapped";
  } catch (const IoError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("no/such/folder: No such file or directory"));
  }
  EXPECT_THROW(map_scratch(::testing::TempDir(), std::size_t{1} << 60), IoError) << "more than any disk has";
}

}  // namespace
}  // namespace cartan
