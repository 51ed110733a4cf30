// The parameters of a rank: who may use them when.
#include "cartan/shard/flat_state.hpp"

#include <gtest/gtest.h>

#include "support/small_model.hpp"
#include "support/test_device.hpp"

namespace cartan::shard {
namespace {

TEST(FlatState, InitialParametersMayBeUsedOnAnyStream) {
  const model::ModelConfig config = cartan::testing::small_model(2);
  const FlatLayout layout(config);
  const auto device = cartan::testing::make_test_device(2);
  const auto alone = comm::make_local_communicator("test");
  const auto other = device->make_stream("another");
  for (const DType compute : {DType::f32, DType::bf16}) {
    FlatState state(layout, {compute, 0}, *device, *alone);
    const std::size_t last = layout.units().size() - 1;
    const device::Vector values = state.whole(last, 0, layout.units()[last].gradient.elements);
    const std::size_t bytes = static_cast<std::size_t>(values.size) * size_of(values.dtype);
    const device::Buffer copy = device->allocate(bytes, device::MemoryKind::workspace, "a test");
    device->compute_stream().synchronize();
    state.initialise(config, 1234);
    device->copy(copy.data(), values.data, bytes, *other);  // waits for nothing
    other->synchronize();
    EXPECT_EQ(cartan::testing::download<std::uint8_t>(*device, copy.data(), bytes),
              cartan::testing::download<std::uint8_t>(*device, values.data, bytes));
  }
}

}  // namespace
}  // namespace cartan::shard
