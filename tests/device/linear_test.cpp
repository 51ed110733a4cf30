// Products against the reference, and the same bits for every number of threads and sequences.
#include <gtest/gtest.h>

#include "device/cpu/cpu_device.hpp"
#include "device/ops_fixture.hpp"
#include "support/canonical_sum.hpp"

namespace cartan::device {
namespace {

using testing::as_values;
using testing::Data;
using testing::expect_close;
using testing::folded;
using testing::random_values;
using testing::Slots;
using testing::Values;

struct Case {
  DType dtype;
  Index sequences, length, n, k;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << name_of(c.dtype) << " sequences " << c.sequences << " length " << c.length << " n " << c.n
             << " k " << c.k;
}

/// x ~ 1, w ~ 1 / sqrt(k): products of size 1 whose sums err by about epsilon sqrt(k).
struct Problem {
  explicit Problem(const Case& c_)
      : c(c_),
        x(c.dtype, random_values(c.sequences * c.length * c.k, "x")),
        w(c.dtype, random_values(c.n * c.k, "w", 1 / std::sqrt(static_cast<double>(c.k)))),
        bias(c.dtype, random_values(c.n, "bias")),
        dy(c.dtype, random_values(c.sequences * c.length * c.n, "dy")) {}
  SequenceShape shape() const { return {c.sequences, c.length}; }
  Case c;
  Data x, w, bias, dy;
};

double sum_error(Index terms) { return 4 * 0x1p-24 * std::sqrt(static_cast<double>(terms)) + 1e-6; }

class Linear : public ::testing::TestWithParam<Case> {};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const DType dtype : testing::kComputeTypes) {
    all.push_back({dtype, 1, 1, 1, 1});
    all.push_back({dtype, 1, 1, 5, 100});
    all.push_back({dtype, 2, 7, 64, 5});
    all.push_back({dtype, 3, 33, 257, 100});
    all.push_back({dtype, 2, 130, 100, 64});
    all.push_back({dtype, 1, 270, 400, 33});
    all.push_back({dtype, 1, 20, 65, 1600});   // depth beyond one packed block
    all.push_back({dtype, 1, 1030, 130, 31});  // tiles of long sequences
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Shapes, Linear, ::testing::ValuesIn(cases()));

TEST_P(Linear, ForwardMatchesTheReference) {
  Problem p(GetParam());
  const auto device = testing::cpu(2);
  const Index rows = p.shape().tokens();
  for (const bool accumulate : {false, true}) {
    for (const bool bias : {false, true}) {
      for (const DType y_type : {p.c.dtype, DType::f32}) {
        Data y(y_type, random_values(rows * p.c.n, "y"));
        Values expected =
            reference::linear_forward(p.x.values(), p.w.values(), bias ? p.bias.values() : Values{}, p.c.k);
        const Values before = y.values();
        for (std::size_t i = 0; accumulate && i < expected.size(); ++i) expected[i] += before[i];
        device->ops().linear_forward(p.x.matrix(p.c.k), p.w.matrix(p.c.k), bias ? p.bias.vector() : Vector{},
                                     y.matrix(p.c.n), accumulate, p.shape(), device->compute_stream());
        device->compute_stream().synchronize();
        expect_close(y.values(), expected, testing::epsilon(y_type), sum_error(p.c.k));
      }
    }
  }
}

TEST_P(Linear, BackwardInputMatchesTheReference) {
  Problem p(GetParam());
  const auto device = testing::cpu(2);
  for (const bool accumulate : {false, true}) {
    Data dx(p.c.dtype, random_values(p.shape().tokens() * p.c.k, "dx"));
    Values expected = reference::linear_backward_input(p.dy.values(), p.w.values(), p.c.n);
    const Values before = dx.values();
    for (std::size_t i = 0; accumulate && i < expected.size(); ++i) expected[i] += before[i];
    device->ops().linear_backward_input(p.dy.matrix(p.c.n), p.w.matrix(p.c.k), dx.matrix(p.c.k), accumulate,
                                        p.shape(), device->compute_stream());
    device->compute_stream().synchronize();
    const double size = std::sqrt(static_cast<double>(p.c.n) / static_cast<double>(p.c.k));
    expect_close(dx.values(), expected, testing::epsilon(p.c.dtype), sum_error(p.c.n) * (1 + 4 * size));
  }
}

TEST_P(Linear, BackwardWeightMatchesTheReference) {
  Problem p(GetParam());
  const auto device = testing::cpu(2);
  const CanonicalTree tree(p.c.sequences);
  const FoldPlan plan = plan_folds(tree, 0, p.c.sequences, p.c.sequences).front();
  Slots dw(1, p.c.n * p.c.k), dbias(1, p.c.n);
  device->ops().linear_backward_weight(p.dy.matrix(p.c.n), p.x.matrix(p.c.k), p.shape(), dw.view(plan),
                                       dbias.view(plan), device->compute_stream());
  device->compute_stream().synchronize();
  const auto expected = reference::linear_backward_weight(p.dy.values(), p.x.values(), p.c.n, p.c.k);
  const auto tokens = static_cast<double>(p.shape().tokens());
  expect_close(dw.values(), expected.dw, 0x1p-22, 0x1p-22 * tokens);
  expect_close(dbias.values(), expected.dbias, 0x1p-22, 0x1p-22 * tokens);
}

TEST_P(Linear, HasTheSameBitsForAnyThreadsAndSequencesTogether) {
  Problem p(GetParam());
  const Index l = p.c.length;
  const auto run = [&](int threads, bool together) {
    const auto device = testing::cpu(threads);
    Data y(p.c.dtype, p.shape().tokens() * p.c.n), dx(p.c.dtype, p.shape().tokens() * p.c.k);
    const Index step = together ? p.c.sequences : 1;
    for (Index s = 0; s < p.c.sequences; s += step) {
      device->ops().linear_forward(p.x.matrix(p.c.k).row_block(s * l, step * l), p.w.matrix(p.c.k),
                                   p.bias.vector(), y.matrix(p.c.n).row_block(s * l, step * l), false,
                                   {step, l}, device->compute_stream());
      device->ops().linear_backward_input(p.dy.matrix(p.c.n).row_block(s * l, step * l), p.w.matrix(p.c.k),
                                          dx.matrix(p.c.k).row_block(s * l, step * l), false, {step, l},
                                          device->compute_stream());
    }
    device->compute_stream().synchronize();
    return std::pair(y, dx);
  };
  const auto [y, dx] = run(1, true);
  for (const int threads : {1, 2, 3}) {
    for (const bool together : {false, true}) {
      const auto [y2, dx2] = run(threads, together);
      EXPECT_TRUE(y.same_bits(y2)) << threads << " threads, together " << together;
      EXPECT_TRUE(dx.same_bits(dx2)) << threads << " threads, together " << together;
    }
  }
}

TEST(LinearBackwardWeight, HasTheSameBitsForEverySplitIntoMicroBatches) {
  for (const DType dtype : testing::kComputeTypes) {
    for (const Index sequences : {1, 2, 3, 5, 8, 13}) {
      Problem p({dtype, sequences, 17, 70, 40});
      const auto run = [&](int threads, Index micro, bool bias) {
        const auto device = testing::cpu(threads);
        Slots unused(8, p.c.n * p.c.k);
        return folded(sequences, micro, bias ? p.c.n : p.c.n * p.c.k,
                      [&](Index first, Index count, const GradientView& view) {
                        GradientView other{unused.pointers, 0, view.plan};
                        device->ops().linear_backward_weight(
                            p.dy.matrix(p.c.n).row_block(first * 17, count * 17),
                            p.x.matrix(p.c.k).row_block(first * 17, count * 17), {count, 17},
                            bias ? other : view, bias ? view : GradientView{}, device->compute_stream());
                        device->compute_stream().synchronize();
                      });
      };
      for (const bool bias : {false, true}) {
        const std::vector<float> whole = run(2, sequences, bias);
        for (const Index micro : {1, 2, 3, 4, 6, 8}) {
          EXPECT_TRUE(testing::same_bits(whole, run(micro % 2 == 0 ? 3 : 1, micro, bias)))
              << sequences << " sequences by " << micro << ", bias " << bias;
        }
      }
    }
  }
}

TEST(LinearBackwardWeight, LeavesAreAddedInTheCanonicalOrder) {
  const Index sequences = 7, l = 4, n = 3, k = 5;
  Problem p({DType::f32, sequences, l, n, k});
  const auto device = testing::cpu(2);
  const auto leaf = [&](Index s) {
    return folded(1, 1, n * k, [&](Index, Index, const GradientView& view) {
      device->ops().linear_backward_weight(p.dy.matrix(n).row_block(s * l, l),
                                           p.x.matrix(k).row_block(s * l, l), {1, l}, view, {},
                                           device->compute_stream());
      device->compute_stream().synchronize();
    });
  };
  std::vector<CanonicalSum<float>> sums(static_cast<std::size_t>(n * k), CanonicalSum<float>(sequences));
  for (Index s = 0; s < sequences; ++s) {
    const std::vector<float> values = leaf(s);
    for (std::size_t i = 0; i < values.size(); ++i) sums[i].push_leaf(s, values[i]);
  }
  std::vector<float> expected;
  for (const auto& sum : sums) expected.push_back(sum.total());
  const std::vector<float> found =
      folded(sequences, 3, n * k, [&](Index first, Index count, const GradientView& v) {
        device->ops().linear_backward_weight(p.dy.matrix(n).row_block(first * l, count * l),
                                             p.x.matrix(k).row_block(first * l, count * l), {count, l}, v, {},
                                             device->compute_stream());
        device->compute_stream().synchronize();
      });
  EXPECT_TRUE(testing::same_bits(expected, found));
}

TEST(Linear, MultipliesAFewRowsByDeepMatrices) {
  // As generation does, in the widths of real models: oneDNN copies parts of what it reads in place.
  const auto device = testing::cpu(1);
  for (const Index rows : {1, 5, 16}) {
    const Index n = 192, k = 1536;
    Data x(DType::f32, random_values(rows * k, "x")),
        w(DType::f32, random_values(n * k, "w", 1 / std::sqrt(static_cast<double>(k))));
    Data y(DType::f32, rows * n), dx(DType::f32, rows * k);
    device->ops().linear_forward(x.matrix(k), w.matrix(k), {}, y.matrix(n), false, {1, rows},
                                 device->compute_stream());
    device->ops().linear_backward_input(y.matrix(n), w.matrix(k), dx.matrix(k), false, {1, rows},
                                        device->compute_stream());
    device->compute_stream().synchronize();
    expect_close(y.values(), reference::linear_forward(x.values(), w.values(), {}, k),
                 testing::epsilon(DType::f32), sum_error(k));
  }
}

TEST(Linear, ReadsAndWritesBlocksOfColumns) {
  const Index rows = 40, n = 20, k = 30;
  for (const DType dtype : testing::kComputeTypes) {
    Data x(dtype, random_values(rows * 2 * k, "wide x")), w(dtype, random_values(n * k, "w"));
    Data y(dtype, rows * 3 * n), narrow(dtype, rows * n), x_copy(dtype, rows * k);
    const auto device = testing::cpu(2);
    Stream& stream = device->compute_stream();
    const ConstMatrix x_part = x.matrix(2 * k).col_block(k, k);
    device->ops().copy(x_part, x_copy.matrix(k), stream);
    device->ops().linear_forward(x_part, w.matrix(k), {}, y.matrix(3 * n).col_block(n, n), false, {1, rows},
                                 stream);
    device->ops().linear_forward(x_copy.matrix(k), w.matrix(k), {}, narrow.matrix(n), false, {1, rows},
                                 stream);
    Data y_part(dtype, rows * n);
    device->ops().copy(y.matrix(3 * n).col_block(n, n), y_part.matrix(n), stream);
    stream.synchronize();
    EXPECT_TRUE(y_part.same_bits(narrow));
    const Values all = y.values();
    for (Index r = 0; r < rows; ++r) {
      EXPECT_EQ(all[static_cast<std::size_t>(r * 3 * n)], 0.0) << "a column outside the block was written";
      EXPECT_EQ(all[static_cast<std::size_t>(r * 3 * n + 2 * n)], 0.0);
    }
  }
}

TEST(Linear, NativeBf16ProductsAgreeWithThoseInFp32) {
  Problem p({DType::bf16, 2, 50, 70, 100});
  const Index n = p.c.n, k = p.c.k;
  const Values y_expected = reference::linear_forward(p.x.values(), p.w.values(), {}, k);
  const Values dx_expected = reference::linear_backward_input(p.dy.values(), p.w.values(), n);
  const Values dw_expected = reference::linear_backward_weight(p.dy.values(), p.x.values(), n, k).dw;
  for (const auto how : {cpu::Gemm::Bf16Products::native, cpu::Gemm::Bf16Products::as_fp32}) {
    const auto device = cpu::make_cpu_device({.threads = 2}, how);
    Stream& stream = device->compute_stream();
    Data y(DType::f32, 100 * n), dx(DType::f32, 100 * k);
    device->ops().linear_forward(p.x.matrix(k), p.w.matrix(k), {}, y.matrix(n), false, p.shape(), stream);
    device->ops().linear_backward_input(p.dy.matrix(n), p.w.matrix(k), dx.matrix(k), false, p.shape(),
                                        stream);
    const std::vector<float> dw = folded(2, 2, n * k, [&](Index, Index, const GradientView& view) {
      device->ops().linear_backward_weight(p.dy.matrix(n), p.x.matrix(k), p.shape(), view, {}, stream);
      stream.synchronize();
    });
    expect_close(y.values(), y_expected, 1e-5, 1e-5);
    expect_close(dx.values(), dx_expected, 1e-5, 1e-5);
    expect_close(as_values(dw), dw_expected, 1e-5, 1e-4);
  }
}

TEST(Linear, RunsOnAnotherStreamBesideTheComputeStream) {
  Problem p({DType::f32, 2, 50, 70, 100});
  const auto device = testing::cpu(2);
  const auto beside = device->make_stream("beside");
  Data a(DType::f32, 100 * p.c.n), b(DType::f32, 100 * p.c.n);
  for (int i = 0; i < 5; ++i) {
    device->ops().linear_forward(p.x.matrix(p.c.k), p.w.matrix(p.c.k), {}, a.matrix(p.c.n), false, p.shape(),
                                 *beside);
    device->ops().linear_forward(p.x.matrix(p.c.k), p.w.matrix(p.c.k), {}, b.matrix(p.c.n), false, p.shape(),
                                 device->compute_stream());
  }
  beside->synchronize();
  device->compute_stream().synchronize();
  EXPECT_TRUE(a.same_bits(b));
}

TEST(Linear, DoesNothingForNoTokens) {
  Data x(DType::f32, 0), w(DType::f32, random_values(20, "w")), y(DType::f32, 0);
  const auto device = testing::cpu(2);
  device->ops().linear_forward({x.vector().data, DType::f32, 0, 5, 5}, w.matrix(5), {},
                               {nullptr, DType::f32, 0, 4, 4}, false, {0, 8}, device->compute_stream());
  EXPECT_NO_THROW(device->compute_stream().synchronize());
}

}  // namespace
}  // namespace cartan::device
