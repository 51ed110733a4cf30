// What an older GPU cannot do is said in one sentence.
#include <gmock/gmock.h>

#include "cartan/train/engine.hpp"
#include "emu/device_info.hpp"
#include "support/test_device.hpp"

namespace cartan::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(OldGpu, MakesNoProductsOfEightBits) {
  if (cartan::testing::on_cpu()) GTEST_SKIP() << "a cpu multiplies everything";
  Config config;
  config.run.device = "cuda";
  config.model.hidden = 16;
  config.model.layers = 1;
  config.model.heads = 1;
  config.model.ffn = 16;
  config.model.derive(16);
  config.data.seq = 16;
  config.mesh = {1, 1, 1, 1};
  config.batch = {1, 1};
  config.precision.compute = "bf16";
  config.precision.products = "fp8";
  comm::Mesh alone = comm::Mesh::alone();
  for (const int capability : {80, 86}) {
    emu::compute_capability = capability;
    const auto device = cartan::testing::make_test_device(1);
    try {
      const Engine engine(config, *device, alone, false);
      FAIL() << "it was taken";
    } catch (const EnvironmentError& error) {
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("precision.products = fp8 needs"), HasSubstr("8.9"),
                        HasSubstr(fmt::format("compute capability {}.{}", capability / 10, capability % 10)),
                        HasSubstr("use precision.products = compute")));
    }
  }
  for (const int capability : {89, 90, 100}) {
    emu::compute_capability = capability;
    const auto device = cartan::testing::make_test_device(1);
    EXPECT_NO_THROW(Engine(config, *device, alone, false));
  }
  emu::compute_capability = 90;
}

}  // namespace
}  // namespace cartan::train
