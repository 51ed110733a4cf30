// IEEE half precision (binary16) as a storage type: 5 exponent bits, 10 fraction bits, subnormals down to
// 2^-24, nothing finite above 65504. Rounded to nearest, ties to even.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace cartan {

struct Float16 {
  std::uint16_t bits = 0;
};

/// Exact; a NaN stays a (quiet) NaN with its payload.
inline float to_float(Float16 value) {
  const std::uint32_t sign = (value.bits & 0x8000u) << 16, magnitude = value.bits & 0x7fffu;
  if (magnitude < 0x400u) {
    const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(subnormal));
  }
  std::uint32_t wide = (magnitude << 13) + (112u << 23);  // 112: the difference of the biases
  if (magnitude >= 0x7c00u) wide += 112u << 23;           // infinity and NaN: all exponent bits
  if (magnitude > 0x7c00u) wide |= 0x400000u;
  return std::bit_cast<float>(sign | wide);
}

/// From 65520 on the result is infinity, up to 2^-25 it is 0; a NaN stays a (quiet) NaN.
inline Float16 to_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  std::uint32_t half = 0;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude < 0x38800000u) {  // below 2^-14; the last bit of the sum with 1/2 stands for 2^-24
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    const std::uint32_t bounded = std::min(magnitude, 0x47800000u);  // 2^16 becomes infinity
    half = ((bounded + 0xfffu + ((bounded >> 13) & 1u)) >> 13) - (112u << 10);
  }
  return {static_cast<std::uint16_t>(sign | half)};
}

}  // namespace cartan
