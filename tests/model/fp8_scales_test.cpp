// Scales follow from the largest magnitudes of the latest steps.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cartan/model/fp8.hpp"
#include "support/test_device.hpp"

namespace cartan::model {
namespace {

constexpr Index kLayers = 3;
constexpr float kE4M3 = 448, kE5M2 = 57344;

class Scales : public ::testing::Test {
 protected:
  float number(const float* place) const { return cartan::testing::download<float>(*device_, place, 1)[0]; }
  float scale(const device::Fp8Scale& s) const { return number(s.scale); }
  /// What a product met.
  void meet(const device::Fp8Scale& s, float amax) const {
    cartan::testing::upload<float>(*device_, s.amax, {amax});
  }
  void step(Fp8Scales& scales, const device::Fp8Scale& s, float amax) {
    scales.begin_step();
    meet(s, amax);
    scales.end_step(*world_);
  }

  std::unique_ptr<device::Device> device_ = cartan::testing::make_test_device(1);
  std::unique_ptr<comm::Communicator> world_ = comm::make_local_communicator("alone");
};

TEST_F(Scales, AreOneWithoutHistory) {
  const Fp8Scales scales(kLayers, {4, 0}, *device_);
  for (Index layer = 0; layer < kLayers; ++layer)
    for (const BlockLinear which :
         {BlockLinear::qkv, BlockLinear::o, BlockLinear::gate_up, BlockLinear::down}) {
      const Fp8Linear linear = scales.linear(layer, which);
      EXPECT_TRUE(linear);
      for (const device::Fp8Scale& s : {linear.x, linear.w, linear.dy}) {
        EXPECT_EQ(scale(s), 1.0f);
        EXPECT_EQ(number(s.inverse), 1.0f);
        EXPECT_EQ(number(s.amax), 0.0f);
      }
    }
  EXPECT_FALSE(Fp8Linear{});
}

TEST_F(Scales, BringTheLargestMagnitudeToTheLargestNumberOfTheFormat) {
  Fp8Scales scales(kLayers, {4, 0}, *device_);
  const Fp8Linear linear = scales.linear(1, BlockLinear::down);
  scales.begin_step();
  meet(linear.x, 2);
  meet(linear.w, 0.5f);
  meet(linear.dy, 0x1p-20f);
  scales.end_step(*world_);
  EXPECT_EQ(scale(linear.x), kE4M3 / 2);
  EXPECT_EQ(number(linear.x.inverse), 1 / (kE4M3 / 2));
  EXPECT_EQ(scale(linear.w), kE4M3 * 2);
  EXPECT_EQ(scale(linear.dy), kE5M2 * 0x1p20f);
  const Fp8Linear other = scales.linear(1, BlockLinear::o);
  EXPECT_EQ(scale(other.dy), 1.0f);
}

TEST_F(Scales, LeaveTheMargin) {
  Fp8Scales wide(1, {4, 3}, *device_), tight(1, {4, -1}, *device_);
  step(wide, wide.linear(0, BlockLinear::qkv).x, 7);
  EXPECT_EQ(scale(wide.linear(0, BlockLinear::qkv).x), kE4M3 / 7 / 8);
  step(tight, tight.linear(0, BlockLinear::qkv).x, 7);
  EXPECT_EQ(scale(tight.linear(0, BlockLinear::qkv).x), kE4M3 / 7 * 2);
}

TEST_F(Scales, FollowTheLargestOfTheHistoryOnly) {
  Fp8Scales scales(1, {3, 0}, *device_);
  const device::Fp8Scale s = scales.linear(0, BlockLinear::o).x;
  const float met[] = {4, 1, 2, 1, 1, 1};
  const float largest[] = {4, 4, 4, 2, 2, 1};
  for (std::size_t i = 0; i < std::size(met); ++i) {
    step(scales, s, met[i]);
    EXPECT_EQ(scale(s), kE4M3 / largest[i]) << "step " << i;
  }
}

TEST_F(Scales, TakeNothingFromWhatIsNotFiniteOrZero) {
  Fp8Scales scales(1, {4, 0}, *device_);
  const device::Fp8Scale s = scales.linear(0, BlockLinear::o).w;
  for (const float nothing : {0.0f, HUGE_VALF, std::numeric_limits<float>::quiet_NaN()}) {
    step(scales, s, nothing);
    EXPECT_EQ(scale(s), 1.0f);
  }
  step(scales, s, 0x1p-130f);
  EXPECT_EQ(scale(s), 0x1p100f) << "whose inverse is a number too";
  EXPECT_EQ(number(s.inverse), 0x1p-100f);
}

TEST_F(Scales, ForgetWhatWasMetBetweenSteps) {
  Fp8Scales scales(1, {4, 0}, *device_);
  const device::Fp8Scale s = scales.linear(0, BlockLinear::o).x;
  step(scales, s, 1);
  meet(s, 100);  // an evaluation
  step(scales, s, 2);
  EXPECT_EQ(scale(s), kE4M3 / 2);
}

TEST_F(Scales, ComeBackFromAHistoryOfAnyLength) {
  Fp8Scales scales(2, {3, 1}, *device_);
  const auto met = [](const Fp8Scales& of) { return of.linear(1, BlockLinear::gate_up).dy; };
  for (const float amax : {8.0f, 4.0f, 2.0f}) step(scales, met(scales), amax);
  const auto history =
      cartan::testing::download<float>(*device_, static_cast<const float*>(scales.history().data),
                                       static_cast<std::size_t>(scales.history().size));
  EXPECT_EQ(scales.history_shape(), (std::vector<Index>{3, 2, 4, 3}));
  Fp8Scales same(2, {3, 1}, *device_), shorter(2, {2, 1}, *device_), longer(2, {5, 1}, *device_);
  for (Fp8Scales* const other : {&same, &shorter, &longer}) other->restore(history);
  EXPECT_EQ(scale(met(same)), kE5M2 / 8 / 2);
  EXPECT_EQ(scale(met(shorter)), kE5M2 / 4 / 2) << "of the two newest steps";
  EXPECT_EQ(scale(met(longer)), kE5M2 / 8 / 2);
  step(same, met(same), 1);
  step(longer, met(longer), 1);
  EXPECT_EQ(scale(met(same)), kE5M2 / 4 / 2);
  EXPECT_EQ(scale(met(longer)), kE5M2 / 8 / 2);
}

}  // namespace
}  // namespace cartan::model
