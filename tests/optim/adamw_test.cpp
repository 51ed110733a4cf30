// Updates of flat units: states in memory of the host are updated as those of the device are.
#include "cartan/optim/adamw.hpp"

#include <gtest/gtest.h>

#include "cartan/core/random.hpp"
#include "support/small_model.hpp"
#include "support/test_device.hpp"

namespace cartan::optim {
namespace {

using cartan::testing::download;

constexpr Index kUnit = 0;  // the embedding, a single piece

class Updates {
 public:
  Updates(DType compute, bool offloaded)
      : layout_(config()),
        state_(layout_, {compute, 1, 1, 2, offloaded, false}, *device_, *alone_),
        optimizer_({}, state_),
        elements_(layout_.units()[kUnit].gradient.elements) {
    state_.initialise(config(), 1234);
  }

  void step(Index update) {
    const device::Vector gradient = state_.gradient(layout_.units()[kUnit].gradient, 0, elements_);
    std::vector<float> values(static_cast<std::size_t>(elements_));
    RandomStream(static_cast<std::uint64_t>(update), "gradient").fill_normal(0, 0, 1, values);
    device_->copy_in(gradient.data, values.data(), values.size() * sizeof(float), device_->compute_stream());
    optimizer_.begin_step();
    optimizer_.update_unit_now(kUnit, update, 1e-2, 1.0);
  }

  std::vector<float> states() {
    optimizer_.settle();
    std::vector<float> all;
    for (const device::Vector& part :
         {state_.master(kUnit, 0, elements_), state_.exp_avg(kUnit, 0, elements_),
          state_.exp_avg_sq(kUnit, 0, elements_)}) {
      const auto values = download<float>(*device_, part.data, static_cast<std::size_t>(part.size));
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

 private:
  static model::ModelConfig config() { return cartan::testing::small_model(1); }
  std::unique_ptr<device::Device> device_ = cartan::testing::make_test_device(2);
  std::unique_ptr<comm::Communicator> alone_ = comm::make_local_communicator("test");
  shard::FlatLayout layout_;
  shard::FlatState state_;
  AdamW optimizer_;
  Index elements_;
};

TEST(AdamW, OffloadedStatesThatOneStepLeavesAreThoseThatTheNextOneTakes) {
  // A single piece a step: two steps use different windows.
  for (const DType compute : {DType::f32, DType::bf16}) {
    Updates here(compute, false), offloaded(compute, true);
    for (Index update = 1; update <= 5; ++update) {
      here.step(update);
      offloaded.step(update);
    }
    EXPECT_EQ(offloaded.states(), here.states());
  }
}

}  // namespace
}  // namespace cartan::optim
