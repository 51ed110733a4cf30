// Dropout by counter-based random numbers.
#include <algorithm>
#include <array>
#include <span>

#include "cartan/core/random.hpp"
#include "device/cpu/kernels.hpp"
#include "device/cpu/partition.hpp"
#include "device/cpu/rows.hpp"

namespace cartan::device::cpu {
namespace {

std::uint32_t low(std::uint64_t value) { return static_cast<std::uint32_t>(value); }
std::uint32_t high(std::uint64_t value) { return static_cast<std::uint32_t>(value >> 32); }

// Columns that are worked on at a time; a multiple of 4.
constexpr Index kPiece = 1024;

/// Zeros where an element of a row is left away. `values` are those of the columns from `column` on.
void leave_away(std::span<float> values, std::uint64_t column, std::int32_t row, const DropoutRule& rule,
                std::uint64_t seed) {
  const PhiloxKey key{low(seed), high(seed)};
  PhiloxCounter bits{};
  for (std::size_t i = 0; i < values.size(); ++i, ++column) {
    if (i == 0 || column % 4 == 0)
      bits = philox({low(column / 4), static_cast<std::uint32_t>(row), low(rule.stream), high(rule.stream)},
                    key);
    if (bits[column % 4] < rule.threshold) values[i] = 0;
  }
}

}  // namespace

void dropout(const Context& context, ConstMatrix x, std::span<const std::int32_t> rows,
             const DropoutRule& rule, Matrix out) {
  for_row_blocks(context, x.rows, x.cols, [&](Index begin, Index end) {
    std::array<float, kPiece> piece;
    for (Index t = begin; t < end; ++t)
      for (Index first = 0; first < x.cols; first += kPiece) {
        const std::span values(piece.data(), static_cast<std::size_t>(std::min(kPiece, x.cols - first)));
        convert(advance(x.data, x.dtype, t * x.stride + first), x.dtype, values.data(), DType::f32,
                std::ssize(values));
        for (float& value : values) value *= rule.factor;
        if (rule.seed != nullptr)
          leave_away(values, static_cast<std::uint64_t>(rule.first_column + first),
                     rows[static_cast<std::size_t>(t)], rule, *rule.seed);
        convert(values.data(), DType::f32, advance(out.data, out.dtype, t * out.stride + first), out.dtype,
                std::ssize(values));
      }
  });
}

}  // namespace cartan::device::cpu
