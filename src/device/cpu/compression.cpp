// Gram-Schmidt, and selection by magnitude. They run on one thread: a few rows, or a pass over a vector
// beside a stream that communicates. The bits do not depend on anything but the operands.
#include "device/cpu/compression.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "cartan/core/error.hpp"
#include "device/cpu/selection.hpp"

namespace cartan::device::cpu {
namespace {

double dot(const float* a, const float* b, Index count) {
  // Four sums in a fixed order, so that the additions do not wait for each other.
  double sums[4] = {0, 0, 0, 0};
  Index i = 0;
  for (; i + 4 <= count; i += 4)
    for (int lane = 0; lane < 4; ++lane)
      sums[lane] += static_cast<double>(a[i + lane]) * static_cast<double>(b[i + lane]);
  for (; i < count; ++i) sums[0] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/// +1 or -1, as if at random.
float sign_of(Index row, Index col) {
  auto bits = static_cast<std::uint64_t>(row) * 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(col);
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;  // the mixing steps of SplitMix64
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  return (bits >> 63) != 0 ? 1.0f : -1.0f;
}

struct Rows {
  float* data;
  Index cols, stride;
  float* row(Index r) const { return data + r * stride; }
};

/// Takes the directions of the rows before it out of a row, twice (the second time removes what rounding
/// left), and gives it length 1. False, and the row undefined, where less than this share of its length
/// remains.
bool normalise(const Rows& x, Index r) {
  constexpr double kLeast = 1e-5;
  float* const row = x.row(r);
  for (int pass = 0; pass < 2; ++pass) {
    const double before = std::sqrt(dot(row, row, x.cols));
    for (Index other = 0; other < r; ++other) {
      const double share = dot(row, x.row(other), x.cols);
      for (Index c = 0; c < x.cols; ++c)
        row[c] =
            static_cast<float>(static_cast<double>(row[c]) - share * static_cast<double>(x.row(other)[c]));
    }
    const double length = std::sqrt(dot(row, row, x.cols));
    if (std::isfinite(before) && length <= kLeast * before) return false;
    for (Index c = 0; c < x.cols; ++c) row[c] = static_cast<float>(static_cast<double>(row[c]) / length);
  }
  return true;
}

std::uint32_t magnitude(float value) { return std::bit_cast<std::uint32_t>(value) & 0x7fffffffu; }

}  // namespace

void orthonormalise_rows(Matrix x) {
  const Rows rows{static_cast<float*>(x.data), x.cols, x.stride};
  for (Index r = 0; r < x.rows; ++r) {
    float* const row = rows.row(r);
    if (r >= x.cols) {
      std::fill(row, row + x.cols, 0.0f);
      continue;
    }
    if (normalise(rows, r)) continue;
    // Nearly any sequence of signs has a direction of its own; coordinates are the last resort.
    bool is_found = false;
    for (Index c = 0; c < x.cols; ++c) row[c] = sign_of(r, c);
    is_found = normalise(rows, r);
    for (Index axis = 0; axis < x.cols && !is_found; ++axis) {
      std::fill(row, row + x.cols, 0.0f);
      row[axis] = 1.0f;
      is_found = normalise(rows, r);
    }
  }
}

void take_largest(Vector x, Vector values, std::span<std::uint32_t> indices) {
  if (indices.empty()) return;
  auto* const from = static_cast<float*>(x.data);
  auto* const to = static_cast<float*>(values.data);
  Largest left = find_largest(
      x.size, indices.size(), [=](Index i) { return magnitude(from[i]); },
      [](std::uint32_t) { return std::uint64_t{1}; });
  std::size_t taken = 0;
  for (Index i = 0; i < x.size && taken < indices.size(); ++i) {
    const std::uint32_t bits = magnitude(from[i]);
    if (bits < left.threshold || (bits == left.threshold && left.equal-- <= 0)) continue;
    indices[taken] = static_cast<std::uint32_t>(i);
    to[taken++] = from[i];
    from[i] = 0.0f;
  }
  CARTAN_ASSERT(taken == indices.size());
}

void scatter_add(Vector y, ConstVector values, std::span<const std::uint32_t> indices) {
  auto* const sums = static_cast<float*>(y.data);
  const auto* const terms = static_cast<const float*>(values.data);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (Index{indices[i]} >= y.size)
      throw InternalError("scatter_add: index {} of {} elements", indices[i], y.size);
    sums[indices[i]] += terms[i];
  }
}

}  // namespace cartan::device::cpu
