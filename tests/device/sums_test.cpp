// Optimizer, sums, copies and conversions.
#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "cartan/core/error.hpp"
#include "device/ops_fixture.hpp"
#include "support/canonical_sum.hpp"

namespace cartan::device {
namespace {

using testing::Data;
using testing::expect_close;
using testing::random_values;
using testing::Values;

class Sums : public ::testing::Test {
 protected:
  std::unique_ptr<Device> device_ = testing::cpu(2);
  Ops& ops_ = device_->ops();
  Stream& stream_ = device_->compute_stream();
};

TEST_F(Sums, AdamWMatchesTheReferenceForTenSteps) {
  for (const Index size : {1, 7, 1000, 70001}) {
    reference::AdamWState expected{random_values(size, "p"), Values(static_cast<std::size_t>(size), 0.0),
                                   Values(static_cast<std::size_t>(size), 0.0)};
    Data master(DType::f32, expected.master), m(DType::f32, size), v(DType::f32, size),
        compute(DType::bf16, size);
    Data master2 = master, m2 = m, v2 = v, compute2(DType::f32, size);
    Data master3 = master, m3 = m, v3 = v, compute3(DType::f16, size);
    for (int t = 1; t <= 10; ++t) {
      AdamWStep step{1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 1, 1, 0.5f};
      step.bias_correction1 = static_cast<float>(1 - std::pow(0.9, t));
      step.bias_correction2 = static_cast<float>(1 - std::pow(0.95, t));
      Data gradient(DType::f32, random_values(size, fmt::format("gradient {}", t)));
      reference::adamw(expected, gradient.values(), step);
      ops_.adamw(master.vector(), gradient.vector(), m.vector(), v.vector(), compute.vector(), step, stream_);
      ops_.adamw(master2.vector(), gradient.vector(), m2.vector(), v2.vector(), compute2.vector(), step,
                 stream_);
      ops_.adamw(master3.vector(), gradient.vector(), m3.vector(), v3.vector(), compute3.vector(), step,
                 stream_);
    }
    stream_.synchronize();
    expect_close(master.values(), expected.master, 1e-5, 1e-6);
    expect_close(m.values(), expected.exp_avg, 1e-5, 1e-6);
    expect_close(v.values(), expected.exp_avg_sq, 1e-5, 1e-7);
    EXPECT_TRUE(master.same_bits(master2));
    EXPECT_TRUE(compute2.same_bits(master));
    EXPECT_TRUE(compute.same_bits(Data(DType::bf16, master.values())));
    EXPECT_TRUE(master.same_bits(master3));
    EXPECT_TRUE(compute3.same_bits(Data(DType::f16, master.values())));
  }
}

TEST_F(Sums, AdamWWithoutAComputeCopyGivesTheSameMasters) {
  Data a(DType::f32, random_values(100, "p")), m(DType::f32, 100), v(DType::f32, 100);
  Data b = a, m2 = m, v2 = v, gradient(DType::f32, random_values(100, "g")), compute(DType::bf16, 100);
  const AdamWStep step{1e-3f, 0.9f, 0.999f, 1e-8f, 0.0f, 0.1f, 0.001f, 1};
  ops_.adamw(a.vector(), gradient.vector(), m.vector(), v.vector(), {}, step, stream_);
  ops_.adamw(b.vector(), gradient.vector(), m2.vector(), v2.vector(), compute.vector(), step, stream_);
  stream_.synchronize();
  EXPECT_TRUE(a.same_bits(b));
}

TEST_F(Sums, SquareSumsAreFp64Blocks) {
  for (const Index size : {Index{1}, kSumBlock - 1, kSumBlock, 3 * kSumBlock + 5}) {
    Data x(DType::f32, random_values(size, "x"));
    std::vector<double> sums(static_cast<std::size_t>((size + kSumBlock - 1) / kSumBlock));
    ops_.square_sums(x.vector(), sums, stream_);
    stream_.synchronize();
    const Values values = x.values();
    for (std::size_t b = 0; b < sums.size(); ++b) {
      double expected = 0;
      for (std::size_t i = b * kSumBlock; i < std::min(values.size(), (b + 1) * kSumBlock); ++i) {
        expected += values[i] * values[i];
      }
      EXPECT_NEAR(sums[b], expected, 1e-12 * expected);
    }
  }
}

TEST_F(Sums, TreeSumIsTheCanonicalSum) {
  const Index count = 10001;
  for (const Index leaves : {1, 2, 3, 5, 8, 13}) {
    std::vector<Data> data;
    std::vector<const float*> pointers;
    for (Index i = 0; i < leaves; ++i)
      data.emplace_back(DType::f32, random_values(count, fmt::format("v {}", i)));
    for (Data& d : data) pointers.push_back(d.floats());
    const std::vector<int> merges = plan_folds(CanonicalTree(leaves), 0, leaves, leaves).front().merges;

    std::vector<CanonicalSum<float>> sums(static_cast<std::size_t>(count), CanonicalSum<float>(leaves));
    std::vector<float> expected;
    for (Index i = 0; i < count; ++i) {
      auto& sum = sums[static_cast<std::size_t>(i)];
      for (Index l = 0; l < leaves; ++l) sum.push_leaf(l, pointers[static_cast<std::size_t>(l)][i]);
      expected.push_back(sum.total());
    }
    std::vector<float> out(static_cast<std::size_t>(count));
    for (const int threads : {1, 3}) {
      const auto device = testing::cpu(threads);
      device->ops().tree_sum(pointers, merges, out.data(), count, device->compute_stream());
      device->compute_stream().synchronize();
      EXPECT_TRUE(testing::same_bits(out, expected)) << leaves << " leaves";
    }
    // out may be any of the values.
    float* const last = data.back().floats();
    ops_.tree_sum(pointers, merges, last, count, stream_);
    stream_.synchronize();
    EXPECT_TRUE(testing::same_bits({last, last + count}, expected)) << leaves << " leaves in place";
  }
}

TEST_F(Sums, TreeSumRefusesMergesThatLeaveMoreThanOneValue) {
  float a = 1, b = 2, out = 0;
  const std::vector<const float*> values{&a, &b};
  EXPECT_THROW(ops_.tree_sum(values, std::vector<int>{0, 0}, &out, 1, stream_), InternalError);
  EXPECT_THROW(ops_.tree_sum(values, std::vector<int>{1, 0}, &out, 1, stream_), InternalError);
}

TEST_F(Sums, AddAndFillZero) {
  for (const Index size : {0, 1, 100, 70001}) {
    Data x(DType::f32, random_values(size, "x")), y(DType::f32, random_values(size, "y"));
    const Values before = y.values(), term = x.values();
    ops_.add(y.vector(), x.vector(), stream_);
    stream_.synchronize();
    const Values after = y.values();
    for (std::size_t i = 0; i < after.size(); ++i) {
      EXPECT_EQ(after[i], static_cast<double>(static_cast<float>(before[i]) + static_cast<float>(term[i])));
    }
    ops_.fill_zero(y.vector(), stream_);
    stream_.synchronize();
    EXPECT_EQ(y.values(), Values(static_cast<std::size_t>(size), 0.0));
  }
}

TEST_F(Sums, CopyRoundsToNearestEven) {
  Values values = random_values(1000, "x");
  const auto from_bits = [](std::uint32_t bits) { return static_cast<double>(std::bit_cast<float>(bits)); };
  // Ties both ways, the largest that stays finite, one that overflows, subnormals, infinities.
  for (const std::uint32_t bits :
       {0x3f808000u, 0x3f818000u, 0x3f808001u, 0x7f7f7fffu, 0x7f7fffffu, 0x00000001u, 0x00018000u,
        0x80018000u, 0x7f800000u, 0xff800000u, 0x477fefffu, 0x477ff000u, 0x3f801000u, 0x3f803000u,
        0x33000000u, 0x33000001u}) {
    values.push_back(from_bits(bits));
  }
  const auto size = static_cast<Index>(values.size());
  for (const DType dtype : {DType::bf16, DType::f16}) {
    Data floats(DType::f32, values), rounded(dtype, size), back(DType::f32, size);
    ops_.copy(floats.matrix(size), rounded.matrix(size), stream_);
    ops_.copy(rounded.matrix(size), back.matrix(size), stream_);
    stream_.synchronize();
    EXPECT_TRUE(rounded.same_bits(Data(dtype, values)));
    EXPECT_EQ(back.values(), rounded.values());
  }
}

TEST_F(Sums, CopyKeepsNaN) {
  // A NaN whose upper half alone would be infinity.
  for (const DType dtype : {DType::bf16, DType::f16}) {
    Data floats(DType::f32, Values(20, std::numeric_limits<double>::quiet_NaN())), rounded(dtype, 20);
    const std::uint32_t low_nan = 0x7f800001u;
    std::memcpy(floats.floats() + 3, &low_nan, 4);
    ops_.copy(floats.matrix(20), rounded.matrix(20), stream_);
    stream_.synchronize();
    for (const double value : rounded.values()) EXPECT_TRUE(std::isnan(value));
  }
}

TEST_F(Sums, AllFiniteFindsOneBadNumber) {
  for (const DType dtype : testing::kComputeTypes) {
    for (const Index bad : {-1, 0, 37, 99 * 101 - 1}) {
      for (const double value : std::initializer_list<double>{NAN, HUGE_VAL, -HUGE_VAL}) {
        Values values = random_values(99 * 101, "x");
        if (bad >= 0) values[static_cast<std::size_t>(bad)] = value;
        Data x(dtype, values);
        EXPECT_EQ(ops_.all_finite(x.matrix(101), stream_), bad < 0);
      }
    }
  }
}

TEST_F(Sums, AllFiniteFindsWhatOverflowedInHalfPrecision) {
  Data floats(DType::f32, Values{1, 65519, -65519, 3}), halves(DType::f16, 4);
  ops_.copy(floats.matrix(4), halves.matrix(4), stream_);
  EXPECT_TRUE(ops_.all_finite(halves.matrix(4), stream_));
  floats.floats()[2] = -65520;
  ops_.copy(floats.matrix(4), halves.matrix(4), stream_);
  EXPECT_FALSE(ops_.all_finite(halves.matrix(4), stream_));
}

}  // namespace
}  // namespace cartan::device
