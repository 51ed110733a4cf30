// Row-wise operations on views into larger arrays: rows that start at any element and have any stride give
// the bits of contiguous ones, and nothing around them is touched. Widths cover what kernels treat
// differently: whole 16-byte packs and rests of them, groups for 8, 16 and 32 threads and for a block, pieces
// of rows.
#include <gtest/gtest.h>

#include "cartan/core/random.hpp"
#include "device/ops_fixture.hpp"

namespace cartan::device {
namespace {

using testing::Array;
using testing::Data;
using testing::Embedded;
using testing::expect_close;
using testing::Ints;
using testing::random_ids;
using testing::random_values;
using testing::Slots;
using testing::Values;

/// Elements before the first row, and between rows. In packs: the first two, where the width allows it.
struct Layout {
  Index lead, gap;
};
constexpr Layout kContiguous{0, 0};
constexpr Layout kLayouts[] = {{8, 16}, {1, 0}, {0, 3}, {5, 7}};

class RowViews : public ::testing::TestWithParam<DType> {
 protected:
  DType dtype() const { return GetParam(); }
  Embedded embedded(Layout layout, Index rows, Index cols, const char* name) const {
    return {dtype(), random_values(rows * cols, name), cols, layout.lead, layout.gap};
  }
  /// A vector that starts where the layout says.
  Vector vector(Embedded& row) const { return {row.matrix().data, dtype(), row.matrix().cols}; }
  void finish() { stream_.synchronize(); }
  Ops& ops_ = testing::device().ops();
  Stream& stream_ = testing::device().compute_stream();
};
INSTANTIATE_TEST_SUITE_P(Types, RowViews, ::testing::ValuesIn(testing::kComputeTypes),
                         [](const auto& param) { return std::string(name_of(param.param)); });

struct NormResult {
  Values y, dx;
  std::vector<float> dweight;
  friend bool operator==(const NormResult&, const NormResult&) = default;
};

TEST_P(RowViews, RmsNorm) {
  for (const Index width : {8, 64, 65, 128, 129, 520, 1024, 1025, 2056}) {
    for (const Index groups : {1, 2}) {
      const Index rows = 5, cols = groups * width;
      const FoldPlan plan{0, 1, 1, {0}};
      const auto run = [&](Layout layout) {
        Embedded x = embedded(layout, rows, cols, "x"), y = embedded(layout, rows, cols, "y");
        Embedded dy = embedded(layout, rows, cols, "dy"), dx = embedded(layout, rows, cols, "dx");
        Embedded weight = embedded(layout, 1, width, "weight");
        Data inv(DType::f32, rows * groups);
        Slots dweight(1, width);
        ops_.rmsnorm_forward(x.matrix(), vector(weight), 1e-5f, y.matrix(), inv.vector(), stream_);
        ops_.rmsnorm_backward(x.matrix(), vector(weight), inv.vector(), dy.matrix(), dx.matrix(), true,
                              {1, rows}, dweight.view(plan), stream_);
        finish();
        EXPECT_TRUE(y.alone() && dx.alone());
        return NormResult{y.values(), dx.values(), dweight.floats()};
      };
      const NormResult expected = run(kContiguous);
      for (const Layout layout : kLayouts)
        EXPECT_EQ(run(layout), expected) << width << " x " << groups << ", from " << layout.lead;
    }
  }
}

TEST_P(RowViews, RmsNormSumsManyRowsInPieces) {
  for (const Index length : {63, 64, 65, 20000}) {
    const Index sequences = 2, width = 9, tokens = sequences * length;
    Data x(dtype(), random_values(tokens * width, "x")), dy(dtype(), random_values(tokens * width, "dy"));
    Data weight(dtype(), Values(static_cast<std::size_t>(width), 1.0)), y(dtype(), tokens * width);
    Data inv(DType::f32, tokens);
    const FoldPlan plan{0, 1, 2, {0, 1}};
    Slots dweight(1, width);
    ops_.rmsnorm_forward(x.matrix(width), weight.vector(), 1e-5f, y.matrix(width), inv.vector(), stream_);
    ops_.rmsnorm_backward(x.matrix(width), weight.vector(), inv.vector(), dy.matrix(width), {}, false,
                          {sequences, length}, dweight.view(plan), stream_);
    finish();
    const auto expected = reference::rmsnorm_backward(x.values(), weight.values(), 1e-5, dy.values());
    // Each term is about 1 and each sum about sqrt(tokens); its rounding grows with the rows of one sum.
    expect_close(dweight.values(), expected.dweight, 0x1p-18, 0x1p-22 * static_cast<double>(length));
  }
}

TEST_P(RowViews, Rope) {
  struct {
    Index head_dim, angles;
  } const shapes[] = {{32, 16}, {32, 8}, {20, 10}, {7, 3}};
  for (const auto& shape : shapes) {
    const Index head_dim = shape.head_dim, angles = shape.angles;
    const Index rows = 9, cols = 3 * head_dim;
    Ints positions(random_ids(rows, 11, "positions"));
    const auto run = [&](Layout layout) {
      Embedded x = embedded(layout, rows, cols, "x");
      Embedded cosines(DType::f32, random_values(11 * angles, "cosines"), angles, layout.lead, layout.gap);
      Embedded sines(DType::f32, random_values(11 * angles, "sines"), angles, layout.lead, layout.gap);
      ops_.rope(x.matrix(), head_dim, positions, cosines.matrix(), sines.matrix(), true, stream_);
      finish();
      EXPECT_TRUE(x.alone());
      return x.values();
    };
    const Values expected = run(kContiguous);
    for (const Layout layout : kLayouts) EXPECT_EQ(run(layout), expected) << head_dim << " " << layout.lead;
  }
}

TEST_P(RowViews, Swiglu) {
  for (const Index width : {1, 8, 40, 41, 2100}) {
    const Index rows = 3;
    const auto run = [&](Layout layout) {
      Embedded gate_up = embedded(layout, rows, 2 * width, "gate_up");
      Embedded dgate_up = embedded(layout, rows, 2 * width, "dgate_up");
      Embedded y = embedded(layout, rows, width, "y"), dy = embedded(layout, rows, width, "dy");
      Embedded again = embedded(layout, rows, width, "again");
      ops_.swiglu_forward(gate_up.matrix(), y.matrix(), stream_);
      ops_.swiglu_backward(gate_up.matrix(), dy.matrix(), dgate_up.matrix(), again.matrix(), stream_);
      finish();
      EXPECT_TRUE(y.alone() && dgate_up.alone() && again.alone());
      EXPECT_EQ(y.values(), again.values());
      return std::pair(y.values(), dgate_up.values());
    };
    const auto expected = run(kContiguous);
    for (const Layout layout : kLayouts) EXPECT_EQ(run(layout), expected) << width << " " << layout.lead;
  }
}

TEST_P(RowViews, Embedding) {
  for (const Index width : {1, 8, 41, 300}) {
    const Index vocab = 13, length = 9, tokens = 2 * length, first = 2;
    Ints ids(random_ids(tokens, 17, "ids"));
    const FoldPlan plan{0, 1, 2, {0, 1}};
    const auto run = [&](Layout layout) {
      Embedded table = embedded(layout, vocab, width, "table"), out = embedded(layout, tokens, width, "out");
      Embedded dout = embedded(layout, tokens, width, "dout");
      Slots dtable(1, layout.lead + vocab * width);
      ops_.embedding_forward(ids, table.matrix(), first, out.matrix(), stream_);
      ops_.embedding_backward(ids, dout.matrix(), {2, length}, first, vocab,
                              dtable.view(plan).at(layout.lead), stream_);
      finish();
      EXPECT_TRUE(out.alone());
      std::vector<float> gradient = dtable.floats();
      for (Index i = 0; i < layout.lead; ++i) EXPECT_TRUE(std::isnan(gradient[static_cast<std::size_t>(i)]));
      gradient.erase(gradient.begin(), gradient.begin() + layout.lead);
      return std::pair(out.values(), gradient);
    };
    const auto expected = run(kContiguous);
    for (const Layout layout : kLayouts) EXPECT_EQ(run(layout), expected) << width << " " << layout.lead;
  }
}

TEST_P(RowViews, EmbeddingOfAHugeVocabularyAndOfATinyOne) {
  for (const Index vocab : {2, 70001}) {
    const Index length = 70, width = 3, sequences = 2, first = 1;
    const auto ids = random_ids(sequences * length, vocab + 1, "ids");
    Ints placed(ids);
    Data dout(dtype(), random_values(sequences * length * width, "dout"));
    // Two values on the stack: the first leaf joins both, the second one becomes a new value.
    const FoldPlan plan{2, 2, 2, {2, 0}};
    Slots dtable(2, vocab * width);
    const Values old = random_values(vocab * width, "old");
    dtable.memory[0].set(old);
    dtable.memory[1].set(Values(old.size(), 2.0));
    ops_.embedding_backward(placed, dout.matrix(width), {sequences, length}, first, vocab, dtable.view(plan),
                            stream_);
    finish();
    const auto half = static_cast<std::ptrdiff_t>(length), values = half * width;
    const Values d = dout.values();
    Values joined = reference::embedding_backward({ids.begin(), ids.begin() + half},
                                                  Values(d.begin(), d.begin() + values), first, vocab, width);
    for (std::size_t i = 0; i < joined.size(); ++i) joined[i] += old[i] + 2.0;
    expect_close(testing::as_values(dtable.floats(0)), joined, 0x1p-20, 1e-5);
    expect_close(testing::as_values(dtable.floats(1)),
                 reference::embedding_backward({ids.begin() + half, ids.end()},
                                               Values(d.begin() + values, d.end()), first, vocab, width),
                 0x1p-20, 1e-5);
  }
}

TEST_P(RowViews, CopyConvertsToEveryType) {
  for (const DType to : testing::kComputeTypes) {
    for (const Index width : {1, 7, 8, 64, 1000}) {
      for (const Layout layout : {kContiguous, kLayouts[0], kLayouts[1], kLayouts[2], kLayouts[3]}) {
        const Index rows = 3;
        Embedded x = embedded(layout, rows, width, "x");
        Embedded y(to, random_values(rows * width, "y"), width, layout.lead, layout.gap);
        ops_.copy(x.matrix(), y.matrix(), stream_);
        finish();
        EXPECT_TRUE(y.alone());
        EXPECT_EQ(y.values(), Data(to, x.values()).values());
      }
    }
  }
}

TEST_P(RowViews, FillZeroStopsAtItsEnds) {
  for (const Index size : {0, 1, 7, 16, 1001}) {
    for (const Index lead : {0, 1, 3, 8}) {
      Data x(dtype(), Values(static_cast<std::size_t>(lead + size + 1), 1.0));
      ops_.fill_zero(x.vector().slice(lead, size), stream_);
      finish();
      Values expected(static_cast<std::size_t>(lead + size + 1), 1.0);
      std::fill_n(expected.begin() + lead, size, 0.0);
      EXPECT_EQ(x.values(), expected);
    }
  }
}

TEST(VectorViews, AddAndSubtract) {
  Device& device = testing::device();
  for (const Index size : {0, 1, 3, 4, 1023, 1025}) {
    for (const auto& [y_lead, x_lead] : {std::pair<Index, Index>{0, 0}, {1, 1}, {0, 1}, {4, 8}}) {
      Data y(DType::f32, random_values(y_lead + size + 1, "y")),
          x(DType::f32, random_values(x_lead + size, "x"));
      Data difference = y;
      const Values before = y.values(), terms = x.values();
      const Vector term = x.vector().slice(x_lead, size);
      device.ops().add(y.vector().slice(y_lead, size), term, device.compute_stream());
      device.ops().subtract(difference.vector().slice(y_lead, size), term, device.compute_stream());
      device.compute_stream().synchronize();
      Values sums = before, differences = before;
      for (Index i = 0; i < size; ++i) {
        const auto to = static_cast<std::size_t>(y_lead + i);
        const auto value = static_cast<float>(before[to]);
        const auto other = static_cast<float>(terms[static_cast<std::size_t>(x_lead + i)]);
        sums[to] = static_cast<double>(value + other);
        differences[to] = static_cast<double>(value - other);
      }
      EXPECT_EQ(y.values(), sums);
      EXPECT_EQ(difference.values(), differences);
    }
  }
}

/// What the contract says, by the random numbers of core.
std::vector<float> dropped(const Values& x, Index cols, const std::vector<std::int32_t>& rows,
                           const DropoutRule& rule, std::uint64_t seed) {
  const auto low = [](std::uint64_t value) { return static_cast<std::uint32_t>(value); };
  std::vector<float> out;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto column = static_cast<std::uint64_t>(rule.first_column) + i % static_cast<std::size_t>(cols);
    const auto row = static_cast<std::uint32_t>(rows[i / static_cast<std::size_t>(cols)]);
    const PhiloxCounter bits = philox({low(column / 4), row, low(rule.stream), low(rule.stream >> 32)},
                                      {low(seed), low(seed >> 32)});
    out.push_back(bits[column % 4] < rule.threshold ? 0.0f : static_cast<float>(x[i]) * rule.factor);
  }
  return out;
}

TEST_P(RowViews, DropoutLeavesAwayWhatTheNumbersOfRowAndColumnSay) {
  constexpr std::uint64_t kSeed = 0xfedcba9876543210u;
  const Array<std::uint64_t> seed(std::vector<std::uint64_t>{kSeed});
  for (const auto& [count, cols] : {std::pair<Index, Index>{1, 1}, {3, 5}, {7, 64}, {2, 1030}}) {
    std::vector<std::int32_t> rows;
    for (Index t = 0; t < count; ++t) rows.push_back(static_cast<std::int32_t>(1'000'000 - 7 * t));
    const Ints placed(rows);
    for (const Index first : {0, 1, 4, 4099}) {
      Data x(dtype(), random_values(count * cols, "x")), out(dtype(), count * cols);
      const DropoutRule rule{.factor = 1.25f,
                             .threshold = 0x60000000u,
                             .seed = seed.data(),
                             .stream = 0x123456789abcu,
                             .first_column = first};
      ops_.dropout(x.matrix(cols), placed, rule, out.matrix(cols), stream_);
      finish();
      const std::vector<float> expected = dropped(x.values(), cols, rows, rule, kSeed);
      Data rounded(dtype(), Values(expected.begin(), expected.end()));
      EXPECT_EQ(out.values(), rounded.values()) << count << " x " << cols << " from " << first;
      ops_.dropout(x.matrix(cols), placed, rule, x.matrix(cols), stream_);
      finish();
      EXPECT_EQ(x.values(), out.values()) << "in place";
    }
    Data x(dtype(), random_values(count * cols, "x")), out(dtype(), count * cols);
    ops_.dropout(x.matrix(cols), {}, {.factor = 0.5f}, out.matrix(cols), stream_);
    finish();
    Values halves = x.values();
    for (double& value : halves) value /= 2;
    EXPECT_EQ(out.values(), halves) << "without a seed all stays";
  }
}

TEST_P(RowViews, DropoutLeavesAwayItsShare) {
  constexpr Index kRows = 64, kCols = 512;
  std::vector<std::int32_t> rows(kRows);
  for (std::size_t t = 0; t < rows.size(); ++t) rows[t] = static_cast<std::int32_t>(t);
  const Array<std::uint64_t> seed(std::vector<std::uint64_t>{1});
  Data x(dtype(), Values(kRows * kCols, 1.0)), out(dtype(), kRows * kCols);
  ops_.dropout(x.matrix(kCols), Ints(rows), {.threshold = 1u << 30, .seed = seed.data()}, out.matrix(kCols),
               stream_);
  finish();
  const Values values = out.values();
  const double share = static_cast<double>(std::count(values.begin(), values.end(), 0.0)) / (kRows * kCols);
  EXPECT_NEAR(share, 0.25, 0.01);  // four deviations
}

}  // namespace
}  // namespace cartan::device
