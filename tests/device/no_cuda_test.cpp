// A build without CUDA says so.
#include <gmock/gmock.h>

#include "cartan/core/error.hpp"
#include "cartan/device/device.hpp"

namespace cartan::device {
namespace {

TEST(Device, CudaIsRefusedWhereItIsNotBuilt) {
  try {
    make_device(DeviceKind::cuda, {});
    FAIL() << "there is a cuda device";
  } catch (const EnvironmentError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("built without CUDA"));
  }
}

}  // namespace
}  // namespace cartan::device
