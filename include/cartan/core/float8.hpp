// The two 8-bit formats of Micikevicius et al. 2022, arXiv:2209.05433, as storage types: e4m3 has numbers up
// to 448, no infinity and one NaN a sign; e5m2 is the upper half of IEEE half precision, finite up to 57344.
// Rounded to nearest, ties to even; what is too large becomes the largest finite number.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace cartan {

/// A format by its fraction bits, the bias of its exponent and the code of its largest finite number.
template <int kFraction, int kBias, std::uint8_t kLargest>
struct Float8 {
  static constexpr std::uint8_t kNan = 0x7f;
  static constexpr std::uint8_t kLargestCode = kLargest;

  std::uint8_t bits = 0;

  /// Exact. Infinities, which no rounding makes, stay infinities.
  friend constexpr float to_float(Float8 value) {
    const std::uint32_t sign = (value.bits & 0x80u) << 24, magnitude = value.bits & 0x7fu;
    constexpr float kSmallest = std::bit_cast<float>((128u - kBias - kFraction) << 23);
    std::uint32_t wide = std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * kSmallest);
    if (magnitude >= (1u << kFraction)) wide = (magnitude << (23 - kFraction)) + ((127u - kBias) << 23);
    if (magnitude > kLargest) {
      const bool is_infinite = magnitude == kLargest + 1u && magnitude != kNan;
      wide = is_infinite ? 0x7f800000u : 0x7fc00000u;
    }
    return std::bit_cast<float>(sign | wide);
  }

  /// A NaN stays one.
  static constexpr Float8 from(float value) {
    const auto all = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (all >> 24) & 0x80u, magnitude = all & 0x7fffffffu;
    constexpr std::uint32_t kSmallestNormal = (128u - kBias) << 23;
    std::uint32_t code = kNan;
    if (magnitude < kSmallestNormal) {
      // The last bit of the sum with this number stands for the smallest one of the format.
      constexpr std::uint32_t kAnchor = (128u - kBias - kFraction + 23u) << 23;
      code = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + std::bit_cast<float>(kAnchor)) -
             kAnchor;
    } else if (magnitude <= 0x7f800000u) {
      constexpr int kShift = 23 - kFraction;
      const std::uint32_t half = (1u << (kShift - 1)) - 1u + ((magnitude >> kShift) & 1u);
      code = ((magnitude + half) >> kShift) - ((127u - kBias) << kFraction);
      code = std::min<std::uint32_t>(code, kLargest);
    }
    return {static_cast<std::uint8_t>(sign | code)};
  }
};

using Float8E4M3 = Float8<3, 7, 0x7e>;
using Float8E5M2 = Float8<2, 15, 0x7b>;

}  // namespace cartan
