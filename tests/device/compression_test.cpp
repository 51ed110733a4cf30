// What compressed gradients need: orthonormal rows, the largest elements, sparse sums.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "cartan/core/error.hpp"
#include "device/ops_fixture.hpp"

namespace cartan::device {
namespace {

using testing::Array;
using testing::Data;
using testing::random_values;
using testing::Values;

class Compression : public ::testing::Test {
 protected:
  void orthonormalise(Data& data, Index cols) {
    ops_.orthonormalise_rows(data.matrix(cols), stream_);
    stream_.synchronize();
  }

  Ops& ops_ = testing::device().ops();
  Stream& stream_ = testing::device().compute_stream();
};

double dot(const Values& values, Index cols, Index a, Index b) {
  double sum = 0;
  for (Index c = 0; c < cols; ++c)
    sum += values[static_cast<std::size_t>(a * cols + c)] * values[static_cast<std::size_t>(b * cols + c)];
  return sum;
}

/// Rows up to the number of columns are orthonormal, further ones zero.
void expect_orthonormal(const Values& values, Index rows, Index cols) {
  for (Index a = 0; a < rows; ++a)
    for (Index b = 0; b <= a; ++b)
      EXPECT_NEAR(dot(values, cols, a, b), a == b && a < cols ? 1.0 : 0.0, 1e-6)
          << "rows " << a << " and " << b << " of " << rows << " x " << cols;
}

TEST_F(Compression, RowsBecomeOrthonormalAndSpanWhatTheySpanned) {
  for (const auto& [rows, cols] :
       {std::pair<Index, Index>{1, 1}, {1, 7}, {3, 5}, {4, 4}, {5, 3}, {8, 1001}, {11, 9001}, {1, 5000}}) {
    const Values before = random_values(rows * cols, "x", 1e3);
    Data data(DType::f32, before);
    orthonormalise(data, cols);
    const Values after = data.values();
    expect_orthonormal(after, rows, cols);
    // The first row keeps its direction; each row lies in the space of the new ones up to it.
    for (Index r = 0; r < std::min(rows, cols); ++r) {
      double captured = 0;
      for (Index other = 0; other <= r; ++other) {
        double share = 0;
        for (Index c = 0; c < cols; ++c)
          share += before[static_cast<std::size_t>(r * cols + c)] *
                   after[static_cast<std::size_t>(other * cols + c)];
        captured += share * share;
      }
      EXPECT_NEAR(captured / dot(before, cols, r, r), 1.0, 1e-5) << "row " << r;
    }
  }
}

TEST_F(Compression, DependentAndZeroRowsGetDirectionsOfTheirOwn) {
  for (const Index cols : {Index{1}, Index{2}, Index{3}, Index{64}, Index{1000}, Index{70001}}) {
    Values values(static_cast<std::size_t>(4 * cols), 0.0);
    const Values row = random_values(cols, "row", 1e-20);
    for (Index c = 0; c < cols; ++c) {
      values[static_cast<std::size_t>(cols + c)] = row[static_cast<std::size_t>(c)];
      values[static_cast<std::size_t>(2 * cols + c)] = -3 * row[static_cast<std::size_t>(c)];
    }
    Data data(DType::f32, values), again(DType::f32, values);
    orthonormalise(data, cols);
    orthonormalise(again, cols);
    expect_orthonormal(data.values(), 4, cols);
    EXPECT_TRUE(data.same_bits(again));
  }
}

TEST_F(Compression, RowsOfAMatrixWithAStrideLeaveTheRestAlone) {
  Data data(DType::f32, random_values(5 * 11, "x"));
  const Values before = data.values();
  ops_.orthonormalise_rows({data.floats(), DType::f32, 5, 7, 11}, stream_);
  stream_.synchronize();
  const Values after = data.values();
  for (Index r = 0; r < 5; ++r)
    for (Index c = 7; c < 11; ++c)
      EXPECT_EQ(after[static_cast<std::size_t>(r * 11 + c)], before[static_cast<std::size_t>(r * 11 + c)]);
}

TEST_F(Compression, WhatIsNotFiniteIsNotHidden) {
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), HUGE_VAL, -HUGE_VAL})
    for (const std::size_t place : {0u, 4u, 9u}) {
      Values values = random_values(10, "x");
      values[place] = bad;
      Data data(DType::f32, values);
      orthonormalise(data, 5);
      EXPECT_FALSE(ops_.all_finite(data.matrix(5), stream_)) << bad << " at " << place;
    }
}

TEST_F(Compression, TakesTheLargestInOrderOfIndex) {
  for (const Index size : {0, 1, 2, 17, 1000, 70001}) {
    for (const Index count : {Index{0}, Index{1}, size / 7, size / 2, size}) {
      if (count > size) continue;
      const Values before = random_values(size, "x", 1e-3);
      std::vector<Index> order(static_cast<std::size_t>(size));
      std::iota(order.begin(), order.end(), Index{0});
      std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) {
        return std::abs(before[static_cast<std::size_t>(a)]) > std::abs(before[static_cast<std::size_t>(b)]);
      });
      order.resize(static_cast<std::size_t>(count));
      std::sort(order.begin(), order.end());

      Data x(DType::f32, before), values(DType::f32, count);
      Array<std::uint32_t> placed(static_cast<std::size_t>(count));
      ops_.take_largest(x.vector(), values.vector(), placed, stream_);
      const std::vector<std::uint32_t> indices = placed.host();
      EXPECT_TRUE(std::equal(order.begin(), order.end(), indices.begin(), indices.end(),
                             [](Index a, std::uint32_t b) { return a == Index{b}; }))
          << count << " of " << size;
      const Values taken = values.values();
      Values left = before;
      for (std::size_t i = 0; i < indices.size(); ++i) {
        EXPECT_EQ(taken[i], before[indices[i]]);
        left[indices[i]] = 0;
      }
      EXPECT_EQ(x.values(), left);

      // Putting them back restores the vector.
      ops_.scatter_add(x.vector(), values.vector(), placed, stream_);
      stream_.synchronize();
      EXPECT_EQ(x.values(), before);
    }
  }
}

TEST_F(Compression, OfEqualMagnitudesTheLowestIndexIsTakenAndNaNBeforeAll) {
  const auto take = [&](Data& x, Index count) {
    Data values(DType::f32, count);
    Array<std::uint32_t> indices(static_cast<std::size_t>(count));
    ops_.take_largest(x.vector(), values.vector(), indices, stream_);
    return indices.host();
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Data x(DType::f32, Values{1, -2, 2, 0, -2, 2, nan, 3});
  EXPECT_EQ(take(x, 4), (std::vector<std::uint32_t>{1, 2, 6, 7}));
  EXPECT_EQ(x.values(), (Values{1, 0, 0, 0, -2, 2, 0, 0}));

  Data zeros(DType::f32, 5);
  EXPECT_EQ(take(zeros, 2), (std::vector<std::uint32_t>{0, 1}));

  // Few magnitudes in many places, so that the last one taken lies in the midst of a run.
  for (const Index count : {1, 2047, 2048, 2049, 5000, 9999}) {
    Values steps;
    for (Index i = 0; i < 10000; ++i) steps.push_back(static_cast<double>(i * 7919 % 5 - 2));
    std::vector<std::uint32_t> expected(10000);
    std::iota(expected.begin(), expected.end(), 0u);
    std::stable_sort(expected.begin(), expected.end(), [&](std::uint32_t a, std::uint32_t b) {
      return std::abs(steps[a]) > std::abs(steps[b]);
    });
    expected.resize(static_cast<std::size_t>(count));
    std::sort(expected.begin(), expected.end());
    Data many(DType::f32, steps);
    EXPECT_EQ(take(many, count), expected) << count;
  }
}

TEST_F(Compression, TakesFromAVectorThatStartsAnywhere) {
  const Values before = random_values(3001, "x");
  for (const Index by : {0, 1, 3}) {
    Data x(DType::f32, before), values(DType::f32, 100);
    Array<std::uint32_t> indices(std::size_t{100});
    ops_.take_largest(x.vector().slice(by, 3001 - by), values.vector(), indices, stream_);
    const std::vector<std::uint32_t> found = indices.host();
    const Values taken = values.values(), left = x.values();
    double least = HUGE_VAL, most = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(taken[i],
                static_cast<double>(static_cast<float>(before[found[i] + static_cast<std::size_t>(by)])));
      least = std::min(least, std::abs(taken[i]));
    }
    for (std::size_t i = static_cast<std::size_t>(by); i < left.size(); ++i)
      most = std::max(most, std::abs(left[i]));
    EXPECT_GE(least, most);
  }
}

TEST_F(Compression, RefusesMoreElementsThanThereAre) {
  Data x(DType::f32, 3), values(DType::f32, 4);
  Array<std::uint32_t> indices(std::vector<std::uint32_t>{0, 1, 2, 3});
  EXPECT_THROW(ops_.take_largest(x.vector(), values.vector(), indices, stream_), InternalError);
}

TEST_F(Compression, AnIndexOutsideIsRefusedAndDestroysNothing) {
  Data x(DType::f32, Values{1, 2, 3, 4}), values(DType::f32, Values{10, 20, 30, 40});
  const Array<std::uint32_t> indices(std::vector<std::uint32_t>{0, 1, 2, 3});
  if (testing::on_cpu()) {
    const auto device = testing::cpu(1);
    device->ops().scatter_add(x.vector().slice(0, 3), values.vector(), indices, device->compute_stream());
    EXPECT_THROW(device->compute_stream().synchronize(), InternalError);
  } else {  // a GPU does not throw
    ops_.scatter_add(x.vector().slice(0, 3), values.vector(), indices, stream_);
  }
  EXPECT_EQ(x.values(), (Values{11, 22, 33, 4}));
}

TEST_F(Compression, SubtractTakesBackWhatAddAdded) {
  for (const Index size : {0, 1, 100, 70001}) {
    Data x(DType::f32, random_values(size, "x")), y(DType::f32, random_values(size, "y"));
    const Values before = y.values(), term = x.values();
    ops_.subtract(y.vector(), x.vector(), stream_);
    stream_.synchronize();
    const Values after = y.values();
    for (std::size_t i = 0; i < after.size(); ++i)
      EXPECT_EQ(after[i], static_cast<double>(static_cast<float>(before[i]) - static_cast<float>(term[i])));
  }
}

}  // namespace
}  // namespace cartan::device
