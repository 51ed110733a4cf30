// Optimizer, sums, copies and conversions on the device under test. What a GPU computes without
// approximations has the bits of the cpu device.
#include <gtest/gtest.h>

#include <bit>

#include "cartan/core/error.hpp"
#include "device/ops_fixture.hpp"
#include "support/canonical_sum.hpp"

namespace cartan::device {
namespace {

using testing::Array;
using testing::Data;
using testing::expect_close;
using testing::random_values;
using testing::Slots;
using testing::Values;

class Sums : public ::testing::Test {
 protected:
  Ops& ops_ = testing::device().ops();
  Stream& stream_ = testing::device().compute_stream();
};

std::vector<float> as_floats(const Values& values) { return {values.begin(), values.end()}; }

/// A vector that starts off the 16 bytes of a pack, or on them.
Vector shifted(Data& data, Index by) { return data.vector().slice(by, data.vector().size - by); }

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
      ops_.adamw(master.vector(), gradient.vector(), m.vector(), v.vector(), compute.vector(), step, nullptr,
                 stream_);
      ops_.adamw(master2.vector(), gradient.vector(), m2.vector(), v2.vector(), compute2.vector(), step,
                 nullptr, stream_);
      ops_.adamw(master3.vector(), gradient.vector(), m3.vector(), v3.vector(), compute3.vector(), step,
                 nullptr, stream_);
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
  ops_.adamw(a.vector(), gradient.vector(), m.vector(), v.vector(), {}, step, nullptr, stream_);
  ops_.adamw(b.vector(), gradient.vector(), m2.vector(), v2.vector(), compute.vector(), step, nullptr,
             stream_);
  stream_.synchronize();
  EXPECT_TRUE(a.same_bits(b));
}

TEST_F(Sums, AdamWHasTheBitsOfOneCpuThreadWhereverVectorsStart) {
  const AdamWStep step{3e-3f, 0.9f, 0.99f, 1e-8f, 0.1f, 0.19f, 0.0199f, 0.7f};
  for (const Index size : {0, 1, 8, 9, 2047, 2049}) {
    std::vector<float> p = as_floats(random_values(size + 1, "p")),
                       g = as_floats(random_values(size + 1, "g")),
                       m = as_floats(random_values(size + 1, "m")),
                       v = as_floats(random_values(size + 1, "v"));
    for (float& square : v) square = std::abs(square);
    if (size > 8) {  // a root of nothing, squares below the normal numbers
      g[5] = m[5] = v[5] = 0;
      g[6] = v[6] = 1e-22f;
    }
    for (const Index by : {0, 1}) {
      Data master(DType::f32, testing::as_values(p)), gradient(DType::f32, testing::as_values(g)),
          exp_avg(DType::f32, testing::as_values(m)), exp_avg_sq(DType::f32, testing::as_values(v)),
          compute(DType::bf16, size + 1);
      ops_.adamw(shifted(master, by), shifted(gradient, by), shifted(exp_avg, by), shifted(exp_avg_sq, by),
                 shifted(compute, by), step, nullptr, stream_);
      stream_.synchronize();
      const auto device = testing::cpu(1);
      std::vector<float> p1 = p, g1 = g, m1 = m, v1 = v;
      const auto vector = [&](std::vector<float>& all) {
        return Vector{all.data() + by, DType::f32, size + 1 - by};
      };
      device->ops().adamw(vector(p1), vector(g1), vector(m1), vector(v1), {}, step, nullptr,
                          device->compute_stream());
      device->compute_stream().synchronize();
      EXPECT_TRUE(testing::same_bits(master.host_floats(), p1)) << size << " from " << by;
      EXPECT_TRUE(testing::same_bits(exp_avg.host_floats(), m1)) << size << " from " << by;
      EXPECT_TRUE(testing::same_bits(exp_avg_sq.host_floats(), v1)) << size << " from " << by;
    }
  }
}

TEST_F(Sums, SquareSumsAreFp64Blocks) {
  for (const Index size : {Index{0}, Index{1}, Index{17}, kSumBlock - 1, kSumBlock, 17 * kSumBlock + 5}) {
    Data x(DType::f32, random_values(size, "x"));
    Array<double> sums(static_cast<std::size_t>((size + kSumBlock - 1) / kSumBlock));
    ops_.square_sums(x.vector(), sums, stream_);
    const Values values = x.values();
    const std::vector<double> found = sums.host();
    for (std::size_t b = 0; b < found.size(); ++b) {
      double expected = 0;
      for (std::size_t i = b * kSumBlock; i < std::min(values.size(), (b + 1) * kSumBlock); ++i) {
        expected += values[i] * values[i];
      }
      EXPECT_NEAR(found[b], expected, 1e-12 * expected);
    }
    const auto device = testing::cpu(1);
    const std::vector<float> floats = x.host_floats();
    std::vector<double> on_host(found.size());
    device->ops().square_sums({floats.data(), DType::f32, size}, on_host, device->compute_stream());
    device->compute_stream().synchronize();
    EXPECT_EQ(found, on_host);
  }
}

/// Sums over some leaves, each in a buffer of its own.
struct Tree {
  std::vector<int> merges;
  std::vector<Data> data;
  std::vector<const float*> pointers;
  std::vector<float> expected;

  Tree(Index leaves, Index count)
      : merges(plan_folds(CanonicalTree(leaves), 0, leaves, leaves).front().merges) {
    std::vector<CanonicalSum<float>> sums(static_cast<std::size_t>(count), CanonicalSum<float>(leaves));
    for (Index l = 0; l < leaves; ++l) {
      data.emplace_back(DType::f32, random_values(count, fmt::format("v {}", l)));
      const std::vector<float> leaf = data.back().host_floats();
      for (std::size_t i = 0; i < leaf.size(); ++i) sums[i].push_leaf(l, leaf[i]);
    }
    for (Data& d : data) pointers.push_back(d.floats());
    for (auto& sum : sums) expected.push_back(sum.total());
  }
};

TEST_F(Sums, TreeSumIsTheCanonicalSum) {
  for (const Index count : {1, 3, 511, 513, 5001}) {
    for (const Index leaves : {1, 2, 3, 4, 5, 8, 13}) {
      Tree tree(leaves, count);
      Data out(DType::f32, count);
      ops_.tree_sum(tree.pointers, tree.merges, out.floats(), count, stream_);
      EXPECT_TRUE(testing::same_bits(out.host_floats(), tree.expected)) << leaves << " leaves of " << count;
      if (count > 5000) continue;
      // From a second element on: no packs, and each sum as before.
      for (const float*& pointer : tree.pointers) ++pointer;
      ops_.tree_sum(tree.pointers, tree.merges, out.floats() + 1, count - 1, stream_);
      for (const float*& pointer : tree.pointers) --pointer;
      EXPECT_TRUE(testing::same_bits(out.host_floats(), tree.expected))
          << leaves << " leaves of " << count - 1;
    }
  }
}

TEST_F(Sums, TreeSumMayOverwriteAnyOfItsValues) {
  const Index count = 700, leaves = 11;
  for (std::size_t place = 0; place < std::size_t{leaves}; ++place) {
    Tree tree(leaves, count);
    ops_.tree_sum(tree.pointers, tree.merges, tree.data[place].floats(), count, stream_);
    EXPECT_TRUE(testing::same_bits(tree.data[place].host_floats(), tree.expected)) << place;
  }
}

TEST_F(Sums, TreeSumTakesLongListsAndEveryNumberOfThreads) {
  for (const Index leaves : {383, 384, 385, 1200}) {
    Tree tree(leaves, 3);
    Data out(DType::f32, 3);
    ops_.tree_sum(tree.pointers, tree.merges, out.floats(), 3, stream_);
    EXPECT_TRUE(testing::same_bits(out.host_floats(), tree.expected)) << leaves << " leaves";
  }
  if (!testing::on_cpu()) return;
  Tree tree(13, 10001);
  std::vector<float> out(10001);
  for (const int threads : {1, 3}) {
    const auto device = testing::cpu(threads);
    device->ops().tree_sum(tree.pointers, tree.merges, out.data(), 10001, device->compute_stream());
    device->compute_stream().synchronize();
    EXPECT_TRUE(testing::same_bits(out, tree.expected)) << threads << " threads";
  }
}

TEST_F(Sums, TreeSumKeepsADeepStackAndTheGpuSaysWhereItEnds) {
  // All values wait until the last one comes.
  const auto sum_of = [&](std::size_t leaves) {
    std::vector<int> merges(leaves, 0);
    merges.back() = static_cast<int>(leaves) - 1;
    Data values(DType::f32, Values(leaves, 1.0)), out(DType::f32, 1);
    std::vector<const float*> pointers;
    for (std::size_t i = 0; i < leaves; ++i) pointers.push_back(values.floats() + i);
    ops_.tree_sum(pointers, merges, out.floats(), 1, stream_);
    return out.values()[0];
  };
  EXPECT_EQ(sum_of(50), 50);
  if (testing::on_cpu())
    EXPECT_EQ(sum_of(51), 51);
  else
    EXPECT_THROW(sum_of(51), ConfigError);
}

TEST_F(Sums, TreeSumRefusesMergesThatLeaveMoreThanOneValue) {
  Data numbers(DType::f32, Values{1, 2, 0});
  const std::vector<const float*> values{numbers.floats(), numbers.floats() + 1};
  float* const out = numbers.floats() + 2;
  EXPECT_THROW(ops_.tree_sum(values, std::vector<int>{0, 0}, out, 1, stream_), InternalError);
  EXPECT_THROW(ops_.tree_sum(values, std::vector<int>{1, 0}, out, 1, stream_), InternalError);
}

TEST_F(Sums, ColumnSumsFoldTheSequencesOfAnyMicroBatch) {
  // The bias's part of linear_backward_weight. Lengths around a piece of 32 rows and more than 256 of them.
  struct {
    Index sequences, length, cols;
  } const sizes[] = {{1, 1, 1}, {3, 31, 5}, {5, 32, 8}, {4, 33, 9}, {3, 700, 70}, {2, 8201, 3}};
  for (const DType dtype : testing::kComputeTypes) {
    for (const auto& size : sizes) {
      const Index sequences = size.sequences, length = size.length, cols = size.cols;
      const Index tokens = sequences * length;
      const Values values = random_values(tokens * cols, "dy");
      Data x(dtype, random_values(tokens, "x"));
      for (const Index lead : {0, 1}) {
        testing::Embedded dy(dtype, values, cols, lead, lead == 0 ? 8 - cols % 8 : lead);
        const auto fold = [&](Index micro) {
          return testing::folded(sequences, micro, cols, [&](Index first, Index count, GradientView dbias) {
            Slots dw(static_cast<int>(dbias.slots.size()), cols);
            ops_.linear_backward_weight(dy.matrix().row_block(first * length, count * length),
                                        x.matrix(1).row_block(first * length, count * length),
                                        {count, length}, dw.view(*dbias.plan), dbias, stream_);
            stream_.synchronize();
          });
        };
        const std::vector<float> whole = fold(sequences);
        Values expected(static_cast<std::size_t>(cols), 0.0);
        const Values rounded = dy.values();
        for (std::size_t i = 0; i < rounded.size(); ++i) expected[i % expected.size()] += rounded[i];
        // Row after row the sum rounds at its own size, the root of the number of rows.
        expect_close(testing::as_values(whole), expected, 0x1p-20, 0x1p-22 * static_cast<double>(tokens));
        EXPECT_TRUE(testing::same_bits(fold(1), whole));
        EXPECT_TRUE(testing::same_bits(fold(2), whole));
      }
    }
  }
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
    std::vector<std::uint32_t> bits(20, 0x7fc00000u);
    bits[3] = 0x7f800001u;
    Array<std::uint32_t> floats(bits);
    Data rounded(dtype, 20);
    ops_.copy({floats.data(), DType::f32, 1, 20, 20}, rounded.matrix(20), stream_);
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
  floats.set(Values{1, 65519, -65520, 3});
  ops_.copy(floats.matrix(4), halves.matrix(4), stream_);
  EXPECT_FALSE(ops_.all_finite(halves.matrix(4), stream_));
}

}  // namespace
}  // namespace cartan::device
