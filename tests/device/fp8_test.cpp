// Rounding to 8 bits against the types of core/float8.hpp, and products of codes against the reference of the
// numbers that the codes stand for.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cartan/core/error.hpp"
#include "cartan/core/float8.hpp"
#include "device/ops_fixture.hpp"
#include "support/canonical_sum.hpp"

namespace cartan::device {
namespace {

using testing::Array;
using testing::as_values;
using testing::Bytes;
using testing::Data;
using testing::Embedded;
using testing::expect_close;
using testing::random_values;
using testing::Slots;
using testing::Values;

constexpr std::uint8_t kUntouched = 0x55;

Ops& ops() { return testing::device().ops(); }
Stream& stream() { return testing::device().compute_stream(); }

std::uint8_t code_of(DType type, float x) {
  return type == DType::e4m3 ? Float8E4M3::from(x).bits : Float8E5M2::from(x).bits;
}
float value_of(DType type, std::uint8_t code) {
  return type == DType::e4m3 ? to_float(Float8E4M3{code}) : to_float(Float8E5M2{code});
}

/// A factor, its inverse and the largest magnitude in device memory.
class Scale {
 public:
  explicit Scale(float scale, float amax = 0) : numbers_(std::vector<float>{scale, 1 / scale, amax}) {}
  Fp8Scale view() const { return {numbers_.data(), numbers_.data() + 1, numbers_.data() + 2}; }
  float amax() const { return numbers_.host()[2]; }

 private:
  Array<float> numbers_;
};

/// Codes with `lead` bytes before them and `gap` after each row, all of them kUntouched at first.
class Codes {
 public:
  Codes(DType type, Index rows, Index cols, Index lead = 0, Index gap = 0)
      : type_(type),
        rows_(rows),
        cols_(cols),
        lead_(lead),
        stride_(cols + gap),
        bytes_(std::vector<std::byte>(static_cast<std::size_t>(lead + rows * stride_ + 16),
                                      std::byte{kUntouched})) {}
  Matrix matrix() const { return {advance(bytes_.data(), type_, lead_), type_, rows_, cols_, stride_}; }
  ConstMatrix operand(const Scale& scale) const {
    ConstMatrix m = matrix();
    m.factor = scale.view().inverse;
    return m;
  }
  /// Row by row; what lies around the rows must be as it was.
  std::vector<std::uint8_t> codes() const {
    const std::vector<std::byte> all = bytes_.host();
    std::vector<std::uint8_t> found;
    for (Index i = 0; i < static_cast<Index>(all.size()); ++i) {
      const Index place = i - lead_;
      const auto byte = static_cast<std::uint8_t>(all[static_cast<std::size_t>(i)]);
      if (place >= 0 && place < rows_ * stride_ && place % stride_ < cols_)
        found.push_back(byte);
      else
        EXPECT_EQ(byte, kUntouched) << "byte " << i;
    }
    return found;
  }

 private:
  DType type_;
  Index rows_, cols_, lead_, stride_;
  Bytes bytes_;
};

float largest_of(const Values& x) {
  double largest = 0;
  for (const double value : x) largest = std::max(largest, std::abs(value));
  return static_cast<float>(largest);
}

struct Shape {
  Index rows, cols, x_lead = 0, x_gap = 0, lead = 0, gap = 0;
};

class ToFp8 : public ::testing::TestWithParam<std::tuple<DType, bool>> {
 protected:
  DType type_ = std::get<0>(GetParam());
  bool transposed_ = std::get<1>(GetParam());

  /// Rounds x and compares every code, and the maximum.
  void expect_codes(const Values& values, const Shape& s, float scale, float amax = 0) {
    Embedded x(DType::bf16, values, s.cols, s.x_lead, s.x_gap);
    const Scale place(scale, amax);
    const Codes codes(type_, transposed_ ? s.cols : s.rows, transposed_ ? s.rows : s.cols, s.lead, s.gap);
    ops().to_fp8(x.matrix(), codes.matrix(), transposed_, place.view(), stream());
    stream().synchronize();
    const Values rounded = x.values();
    const std::vector<std::uint8_t> found = codes.codes();
    ASSERT_EQ(found.size(), rounded.size());
    for (Index r = 0; r < s.rows; ++r)
      for (Index c = 0; c < s.cols; ++c) {
        const auto at = static_cast<std::size_t>(r * s.cols + c);
        const float value = static_cast<float>(rounded[at]);
        const std::uint8_t code = found[transposed_ ? static_cast<std::size_t>(c * s.rows + r) : at];
        if (std::isnan(value))
          ASSERT_TRUE(std::isnan(value_of(type_, code))) << "row " << r << " column " << c;
        else
          ASSERT_EQ(code, code_of(type_, value * scale)) << value << " at row " << r << " column " << c;
      }
    bool has_nan = false;
    for (const double value : rounded) has_nan |= std::isnan(value);
    if (has_nan)
      EXPECT_TRUE(std::isnan(place.amax()));
    else
      EXPECT_EQ(place.amax(), std::max(amax, largest_of(rounded)));
  }
};

INSTANTIATE_TEST_SUITE_P(Formats, ToFp8,
                         ::testing::Combine(::testing::Values(DType::e4m3, DType::e5m2), ::testing::Bool()),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param) == DType::e4m3 ? "e4m3" : "e5m2") +
                                  (std::get<1>(test.param) ? "_transposed" : "");
                         });

TEST_P(ToFp8, RoundsEveryBfloat16) {
  Values all;
  for (int bits = 0; bits < 0x10000; ++bits) {
    const float x = to_float(BFloat16{static_cast<std::uint16_t>(bits)});
    if (!std::isnan(x)) all.push_back(static_cast<double>(x));
  }
  all.resize((all.size() + 2047) / 2048 * 2048);
  expect_codes(all, {static_cast<Index>(all.size()) / 128, 128}, 1.0f);
}

TEST_P(ToFp8, KeepsNan) {
  Values x = random_values(512, "x");
  x[17] = NAN;
  expect_codes(x, {16, 32}, 2.0f);
}

TEST_P(ToFp8, TakesPartsOfTilesAndAnyStrideAndStart) {
  const Shape shapes[] = {{16, 16},
                          {112, 48, 1, 1},
                          {128, 64},
                          {144, 80, 8, 8, 16, 16},
                          {256, 128, 0, 8, 0, 32},
                          {32, 48, 3, 0, 32, 48},
                          {16, 1040, 2, 2}};
  for (const Shape& s : shapes) {
    SCOPED_TRACE(fmt::format("{} x {}", s.rows, s.cols));
    expect_codes(random_values(s.rows * s.cols, "x"), s, 100.0f);
  }
}

// A block of the GPU then takes tile after tile.
TEST_P(ToFp8, TakesMoreTilesThanAGridHasBlocks) {
  if (!transposed_ || type_ != DType::e4m3) return;  // whose tiles go through shared memory; once is enough
  constexpr Index kRows = 16, kCols = 64 * 2049;
  Values values;
  for (Index i = 0; i < kRows * kCols; ++i) values.push_back(static_cast<double>(i % 509) / 4 - 60);
  expect_codes(values, {kRows, kCols}, 1.0f);
}

TEST_P(ToFp8, RaisesTheLargestMagnitudeOnly) {
  expect_codes(random_values(512, "x"), {16, 32}, 1.0f, 1000.0f);
  expect_codes(random_values(512, "x"), {16, 32}, 1.0f, 0.5f);
  expect_codes(Values(512, 0.0), {16, 32}, 1.0f);
}

TEST_P(ToFp8, DoesNothingForNoRows) {
  const Scale scale(1.0f);
  const Codes codes(type_, transposed_ ? 16 : 0, transposed_ ? 0 : 16);
  ops().to_fp8({nullptr, DType::bf16, 0, 16, 16}, codes.matrix(), transposed_, scale.view(), stream());
  stream().synchronize();
  EXPECT_TRUE(codes.codes().empty());
  EXPECT_EQ(scale.amax(), 0.0f);
}

struct Case {
  Index sequences, length, n, k;
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << "sequences " << c.sequences << " length " << c.length << " n " << c.n << " k " << c.k;
}

/// A tensor as codes, as transposed codes, and as the numbers that they stand for.
struct Quantised {
  Quantised(DType type, const Values& values, Index cols_, float scale_)
      : cols(cols_),
        rows(static_cast<Index>(values.size()) / cols_),
        scale(scale_),
        codes(type, rows, cols),
        turned(type, cols, rows) {
    Data x(DType::bf16, values);
    ops().to_fp8(x.matrix(cols), codes.matrix(), false, scale.view(), stream());
    ops().to_fp8(x.matrix(cols), turned.matrix(), true, scale.view(), stream());
    stream().synchronize();
    // What the products take for the numbers: the inverse in fp32.
    for (const std::uint8_t code : codes.codes())
      numbers.push_back(static_cast<double>(value_of(type, code)) * static_cast<double>(1 / scale_));
  }
  ConstMatrix operand() const { return codes.operand(scale); }
  ConstMatrix transposed() const { return turned.operand(scale); }
  Index cols, rows;
  Scale scale;
  Codes codes, turned;
  Values numbers;
};

struct Problem {
  explicit Problem(const Case& c_)
      : c(c_),
        x(DType::e4m3, random_values(c.sequences * c.length * c.k, "x"), c.k, 100.0f),
        w(DType::e4m3, random_values(c.n * c.k, "w", 1 / std::sqrt(static_cast<double>(c.k))),
          c.n == 0 ? 1 : c.k, 3000.0f),
        dy(DType::e5m2, random_values(c.sequences * c.length * c.n, "dy"), c.n, 7000.0f) {}
  SequenceShape shape() const { return {c.sequences, c.length}; }
  Case c;
  Quantised x, w, dy;
};

class LinearInFp8 : public ::testing::TestWithParam<Case> {
 protected:
  static double sum_error(Index terms) { return 4 * 0x1p-24 * std::sqrt(static_cast<double>(terms)) + 2e-6; }
};
INSTANTIATE_TEST_SUITE_P(Shapes, LinearInFp8,
                         ::testing::Values(Case{1, 16, 16, 16}, Case{3, 32, 48, 80}, Case{2, 144, 272, 112},
                                           Case{1, 16, 64, 1600}));

TEST_P(LinearInFp8, ForwardMatchesTheReference) {
  const Problem p(GetParam());
  Data bias(DType::bf16, random_values(p.c.n, "bias"));
  for (const bool accumulate : {false, true})
    for (const bool has_bias : {false, true})
      for (const DType y_type : {DType::bf16, DType::f32}) {
        if (accumulate && has_bias && y_type == DType::f32) continue;  // no layer asks for it
        Data y(y_type, random_values(p.shape().tokens() * p.c.n, "y"));
        Values expected =
            reference::linear_forward(p.x.numbers, p.w.numbers, has_bias ? bias.values() : Values{}, p.c.k);
        const Values before = y.values();
        for (std::size_t i = 0; accumulate && i < expected.size(); ++i) expected[i] += before[i];
        ops().linear_forward(p.x.operand(), p.w.operand(), has_bias ? bias.vector() : Vector{},
                             y.matrix(p.c.n), accumulate, p.shape(), stream());
        stream().synchronize();
        expect_close(y.values(), expected, testing::epsilon(y_type), sum_error(p.c.k));
      }
}

TEST_P(LinearInFp8, BackwardInputMatchesTheReference) {
  const Problem p(GetParam());
  for (const bool accumulate : {false, true}) {
    Data dx(DType::bf16, random_values(p.shape().tokens() * p.c.k, "dx"));
    Values expected = reference::linear_backward_input(p.dy.numbers, p.w.numbers, p.c.n);
    const Values before = dx.values();
    for (std::size_t i = 0; accumulate && i < expected.size(); ++i) expected[i] += before[i];
    ops().linear_backward_input(p.dy.operand(), p.w.transposed(), dx.matrix(p.c.k), accumulate, p.shape(),
                                stream());
    stream().synchronize();
    const double size = std::sqrt(static_cast<double>(p.c.n) / static_cast<double>(p.c.k));
    expect_close(dx.values(), expected, testing::epsilon(DType::bf16), sum_error(p.c.n) * (1 + 4 * size));
  }
}

TEST_P(LinearInFp8, BackwardWeightMatchesTheReference) {
  const Problem p(GetParam());
  const FoldPlan plan = plan_folds(CanonicalTree(p.c.sequences), 0, p.c.sequences, p.c.sequences).front();
  Slots dw(1, p.c.n * p.c.k);
  ops().linear_backward_weight(p.dy.transposed(), p.x.transposed(), p.shape(), dw.view(plan), {}, stream());
  stream().synchronize();
  const auto expected = reference::linear_backward_weight(p.dy.numbers, p.x.numbers, p.c.n, p.c.k);
  const auto tokens = static_cast<double>(p.shape().tokens());
  expect_close(dw.values(), expected.dw, 0x1p-21, 0x1p-21 * tokens);
}

TEST_P(LinearInFp8, HasTheSameBitsForSequencesTogetherAndAlone) {
  const Problem p(GetParam());
  const Index l = p.c.length, n = p.c.n, k = p.c.k;
  const auto forward = [&](Index together) {
    Data y(DType::bf16, p.shape().tokens() * n), dx(DType::bf16, p.shape().tokens() * k);
    for (Index s = 0; s < p.c.sequences; s += together) {
      const SequenceShape part{std::min(together, p.c.sequences - s), l};
      const auto of = [&](auto m) { return m.row_block(s * l, part.tokens()); };
      ops().linear_forward(of(p.x.operand()), p.w.operand(), {}, of(y.matrix(n)), false, part, stream());
      ops().linear_backward_input(of(p.dy.operand()), p.w.transposed(), of(dx.matrix(k)), false, part,
                                  stream());
    }
    stream().synchronize();
    return std::pair{y, dx};
  };
  const auto one = forward(1), all = forward(p.c.sequences);
  EXPECT_TRUE(one.first.same_bits(all.first));
  EXPECT_TRUE(one.second.same_bits(all.second));
  const auto gradient = [&](Index micro) {
    return testing::folded(
        p.c.sequences, micro, n * k, [&](Index first, Index count, const GradientView& dw) {
          const auto of = [&](const ConstMatrix& m) { return m.col_block(first * l, count * l); };
          ops().linear_backward_weight(of(p.dy.transposed()), of(p.x.transposed()), {count, l}, dw, {},
                                       stream());
          stream().synchronize();
        });
  };
  const std::vector<float> alone = gradient(1);
  EXPECT_TRUE(testing::same_bits(gradient(2), alone));
  EXPECT_TRUE(testing::same_bits(gradient(p.c.sequences), alone));
}

TEST(ColumnSums, AreThoseOfTheProductInSixteenBits) {
  const Index n = 37;
  const SequenceShape shape{3, 21};
  Data dy(DType::bf16, random_values(shape.tokens() * n, "dy"));
  Data x(DType::bf16, random_values(shape.tokens() * 5, "x"));
  const FoldPlan plan = plan_folds(CanonicalTree(3), 0, 3, 3).front();
  Slots dw(1, n * 5), dbias(1, n), alone(1, n);
  ops().linear_backward_weight(dy.matrix(n), x.matrix(5), shape, dw.view(plan), dbias.view(plan), stream());
  ops().column_sums(dy.matrix(n), shape, alone.view(plan), stream());
  stream().synchronize();
  EXPECT_TRUE(testing::same_bits(alone.floats(), dbias.floats()));
}

TEST(FitsFp8, AsksForMultiplesOfSixteenAndAnAlignedGradient) {
  EXPECT_TRUE(fits_fp8(16, 16, 16));
  EXPECT_TRUE(fits_fp8(4096, 48, 272));
  for (const Index odd : {0, 1, 8, 15, 17, 24}) {
    EXPECT_FALSE(fits_fp8(odd, 16, 16)) << odd;
    EXPECT_FALSE(fits_fp8(16, odd, 16)) << odd;
    EXPECT_FALSE(fits_fp8(16, 16, odd)) << odd;
  }
  const FoldPlan plan{0, 1, 1, {0}};
  EXPECT_TRUE(fits_fp8(16, 16, 16, {{}, 20, &plan}));
  EXPECT_FALSE(fits_fp8(16, 16, 16, {{}, 21, &plan}));
}

TEST(ToFp8, RefusesWhatIsNoMultipleOfSixteen) {
  const Scale scale(1.0f);
  Data x(DType::bf16, 48 * 48);
  const auto refuse = [&](Index rows, Index cols, const Codes& codes) {
    EXPECT_THROW(ops().to_fp8({x.vector().data, DType::bf16, rows, cols, 48}, codes.matrix(), false,
                              scale.view(), stream()),
                 InternalError);
  };
  refuse(16, 24, {DType::e4m3, 16, 24, 0, 8});
  refuse(24, 16, {DType::e4m3, 24, 16});
  refuse(16, 16, {DType::e4m3, 16, 16, 8, 0});
  refuse(16, 16, {DType::e4m3, 16, 16, 0, 8});
  refuse(16, 16, {DType::e4m3, 16, 32});
}

TEST(Fp8, RefusesAShapeThatDoesNotFitAndMixedFactors) {
  const Scale scale(1.0f);
  const Codes x(DType::e4m3, 16, 24), w(DType::e4m3, 16, 24), dy(DType::e5m2, 16, 16);
  Data y(DType::bf16, 256), wide(DType::bf16, 16 * 24);
  EXPECT_THROW(
      ops().linear_forward(x.operand(scale), w.operand(scale), {}, y.matrix(16), false, {1, 16}, stream()),
      InternalError);
  EXPECT_THROW(
      ops().linear_forward(wide.matrix(24), w.operand(scale), {}, y.matrix(16), false, {1, 16}, stream()),
      InternalError);
  EXPECT_THROW(
      ops().linear_forward(dy.operand(scale), dy.operand(scale), {}, y.matrix(16), false, {1, 16}, stream()),
      InternalError);
}

}  // namespace
}  // namespace cartan::device
