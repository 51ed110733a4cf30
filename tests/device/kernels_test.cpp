// Every instruction set that the loops are compiled for gives right answers, and the same bits where
// promised.
#include "device/cpu/kernels.hpp"

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <bit>
#include <cmath>

#include "device/ops_fixture.hpp"

namespace cartan::device::cpu {
namespace {

using testing::Data;
using testing::random_values;
using testing::Values;

/// Calls work(name) once for each instruction set of this CPU, the best one first.
template <class Work>
void on_every_target(const Work& work) {
  const auto supported = hwy::SupportedTargets();
  for (auto target = supported; target != 0; target &= target - 1) {
    const auto lowest = target & -target;
    hwy::SetSupportedTargetsForTest(lowest);
    work(hwy::TargetName(lowest));
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST(Kernels, PackingMovesEveryElement) {
  for (const DType dtype : testing::kComputeTypes) {
    for (const auto& shape : {std::pair<Index, Index>{1, 1}, {3, 70}, {16, 16}, {37, 41}, {64, 9}}) {
      const Index rows = shape.first, cols = shape.second;
      const Index stride = cols + 3;
      Data in(dtype, random_values(rows * stride, "in"));
      const Values values = in.values();
      on_every_target([&](const char* name) {
        std::vector<float> straight(static_cast<std::size_t>(rows * 80), -7.0f);
        std::vector<float> turned(static_cast<std::size_t>(cols * 80), -7.0f);
        pack_rows(in.vector().data, dtype, stride, rows, cols, straight.data(), 80);
        pack_transposed(in.vector().data, dtype, stride, rows, cols, turned.data(), 80);
        for (Index r = 0; r < rows; ++r) {
          for (Index c = 0; c < cols; ++c) {
            const double expected = values[static_cast<std::size_t>(r * stride + c)];
            ASSERT_EQ(straight[static_cast<std::size_t>(r * 80 + c)], expected)
                << name << " " << r << " " << c;
            ASSERT_EQ(turned[static_cast<std::size_t>(c * 80 + r)], expected) << name << " " << r << " " << c;
          }
          ASSERT_EQ(straight[static_cast<std::size_t>(r * 80 + cols)], -7.0f)
              << name << " wrote beyond a row";
        }
        for (Index c = 0; c < cols; ++c) {
          ASSERT_EQ(turned[static_cast<std::size_t>(c * 80 + rows)], -7.0f)
              << name << " wrote beyond a column";
        }
      });
    }
  }
}

TEST(Kernels, ConversionAndAdamWHaveTheSameBitsOnEveryInstructionSet) {
  constexpr Index kSize = 203;
  Data in(DType::f32, random_values(kSize, "in"));
  const Data rounded[] = {{DType::bf16, in.values()}, {DType::f16, in.values()}};
  std::vector<float> first_masters;
  double first_sum = 0;
  on_every_target([&](const char* name) {
    for (const Data& expected : rounded) {
      Data out(expected.dtype(), kSize);
      convert(in.vector().data, DType::f32, out.vector().data, out.dtype(), kSize);
      EXPECT_TRUE(out.same_bits(expected)) << name;
    }

    Data master(DType::f32, random_values(kSize, "p")), m(DType::f32, random_values(kSize, "m"));
    Data v(DType::f32, Values(kSize, 0.3));
    adamw_block(master.floats(), in.floats(), m.floats(), v.floats(), nullptr, DType::f32, kSize,
                {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.5f, 0.4f, 0.7f});
    const std::vector<float> masters(master.floats(), master.floats() + kSize);
    const double sum = square_sum(in.floats(), kSize);
    if (first_masters.empty()) {
      first_masters = masters;
      first_sum = sum;
    }
    EXPECT_TRUE(testing::same_bits(masters, first_masters)) << name;
    EXPECT_EQ(sum, first_sum) << name;
  });
}

TEST(Kernels, HalfPrecisionConvertsOnEveryInstructionSetAsInTheCore) {
  // All halves; and all floats where rounding turns: each half, the middle to the next one, their neighbours.
  constexpr int kHalves = 0x10000, kInfinity = 0x7c00;
  std::vector<std::uint16_t> halves;
  std::vector<float> floats;
  for (int bits = 0; bits < kHalves; ++bits) {
    halves.push_back(static_cast<std::uint16_t>(bits));
    const float value = to_float(Float16{halves.back()});
    floats.push_back(value);
    if ((bits & 0x7fff) >= kInfinity) continue;
    const bool largest = (bits & 0x7fff) + 1 == kInfinity;
    const float next =
        largest ? std::copysign(0x1p16f, value) : to_float(Float16{static_cast<std::uint16_t>(bits + 1)});
    const float middle = (value + next) / 2;
    for (const float near : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 2 * next)})
      floats.push_back(near);
  }
  for (const std::uint32_t bits : {0x7f800001u, 0xff800001u, 0x7fffffffu, 0x7f7fffffu, 0xff7fffffu,
                                   0x00000001u, 0x80000001u, 0x007fffffu, 0x00800000u})
    floats.push_back(std::bit_cast<float>(bits));
  on_every_target([&](const char* name) {
    std::vector<float> widened(halves.size());
    convert(halves.data(), DType::f16, widened.data(), DType::f32, kHalves);
    for (std::size_t i = 0; i < halves.size(); ++i) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(widened[i]),
                std::bit_cast<std::uint32_t>(to_float(Float16{halves[i]})))
          << name << " " << i;
    }
    std::vector<std::uint16_t> rounded(floats.size());
    convert(floats.data(), DType::f32, rounded.data(), DType::f16, static_cast<Index>(floats.size()));
    for (std::size_t i = 0; i < floats.size(); ++i)
      ASSERT_EQ(rounded[i], to_float16(floats[i]).bits) << name << " " << floats[i];
  });
}

TEST(Kernels, TheSixteenBitTypesConvertIntoEachOther) {
  constexpr Index kSize = 75;
  const Values values = random_values(kSize, "x", 100);
  on_every_target([&](const char* name) {
    for (const auto& [from, to] : {std::pair{DType::bf16, DType::f16}, {DType::f16, DType::bf16}}) {
      Data in(from, values), out(to, kSize);
      convert(in.vector().data, from, out.vector().data, to, kSize);
      EXPECT_TRUE(out.same_bits(Data(to, in.values()))) << name;
    }
  });
}

TEST(Kernels, SumsOfPartsHaveTheSameBitsOnEveryInstructionSet) {
  constexpr Index kCols = 75, kParts = 3;
  for (const DType dtype : testing::kComputeTypes) {
    Data stacked(dtype, random_values(kParts * kCols, "stacked"));
    Data first_sum(dtype, 0), first_blend(DType::f32, 0);
    on_every_target([&](const char* name) {
      Data sum(dtype, random_values(kCols, "sum")), blend(DType::f32, sum.values());
      sum_rows(stacked.vector().data, kCols, kParts, dtype, sum.vector().data, sum.vector().data, dtype,
               kCols);
      blend_row(blend.floats(), 0.3f, stacked.vector().data, 0.7f, dtype, kCols);
      if (first_sum.values().empty()) first_sum = sum, first_blend = blend;
      EXPECT_TRUE(sum.same_bits(first_sum)) << name;
      EXPECT_TRUE(blend.same_bits(first_blend)) << name;
    });
  }
}

TEST(Kernels, RowsAgreeWithTheReferenceOnEveryInstructionSet) {
  constexpr Index kCols = 75;
  Data x(DType::f32, random_values(kCols, "x")), weight(DType::f32, random_values(kCols, "weight"));
  Data dy(DType::f32, random_values(kCols, "dy")),
      gate_up(DType::f32, random_values(2 * kCols, "gate_up", 4));
  const auto norm = reference::rmsnorm_forward(x.values(), weight.values(), 1e-5);
  const auto norm_gradients = reference::rmsnorm_backward(x.values(), weight.values(), 1e-5, dy.values());
  const std::vector<std::int32_t> target{3};
  const auto loss = reference::cross_entropy(gate_up.values(), target);
  on_every_target([&](const char* name) {
    SCOPED_TRACE(name);
    Data y(DType::f32, kCols), dx(DType::f32, kCols);
    const float inv_rms = rmsnorm_row(x.floats(), weight.floats(), 1e-5f, y.floats(), DType::f32, kCols);
    testing::expect_close(y.values(), norm.y, 1e-6, 1e-6);
    rmsnorm_row_backward(x.floats(), weight.floats(), inv_rms, dy.floats(), dx.floats(), false, DType::f32,
                         kCols);
    testing::expect_close(dx.values(), norm_gradients.dx, 1e-5, 1e-5);
    swiglu_row(gate_up.floats(), gate_up.floats() + kCols, y.floats(), DType::f32, kCols);
    testing::expect_close(y.values(), reference::swiglu_forward(gate_up.values(), kCols), 1e-5, 1e-6);
    Data dlogits(DType::f32, 2 * kCols);
    EXPECT_NEAR(cross_entropy_row(gate_up.floats(), 2 * kCols, target[0], dlogits.floats(), DType::f32, 1.0f),
                loss.row_loss[0], 1e-5);
    testing::expect_close(dlogits.values(), loss.dlogits, 1e-5, 1e-7);
    // The target among the first columns; the last ones alone, by the statistics of all.
    const SoftmaxStats stats = softmax_stats(gate_up.floats(), 2 * kCols);
    EXPECT_NEAR(std::log(stats.sum) + stats.maximum - gate_up.floats()[target[0]], loss.row_loss[0], 1e-5);
    cross_entropy_gradient(gate_up.floats() + kCols, kCols, target[0] - kCols, stats, y.floats(), DType::f32,
                           1.0f);
    testing::expect_close(y.values(), Values(loss.dlogits.begin() + kCols, loss.dlogits.end()), 1e-5, 1e-7);
    EXPECT_TRUE(finite(x.floats(), DType::f32, kCols));
  });
}

}  // namespace
}  // namespace cartan::device::cpu
