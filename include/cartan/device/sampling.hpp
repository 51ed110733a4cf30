// What a token weighs when the next one is chosen (Ops::sample), written once for every device: a whole
// number, so that sums are exact in any order. The arithmetic is plain IEEE and no compiler here fuses
// products and sums
// (-ffp-contract=off, -fmad=false), so that each device finds the same bits.
#pragma once

#include <cstdint>

#include "cartan/core/types.hpp"
#include "cartan/device/everywhere.hpp"

namespace cartan::device {

/// How the next token is chosen.
struct SamplingRule {
  double temperature = 0;  ///< 0: the largest logit (the first one among equals)
  Index top_k = 0;         ///< only the k largest logits; 0: all
  double top_p = 1;        ///< only the smallest set of likeliest tokens with at least this probability
};

/// Logits of a row at most: their weights add up to less than 2^64.
inline constexpr Index kMostLogits = Index{1} << 22;

inline constexpr std::uint32_t kSignBit = 0x80000000u, kInfinityBits = 0x7f800000u;

/// The order of floats, from their bits: -0 is 0, a NaN is above all.
CARTAN_EVERYWHERE inline std::uint32_t order_of(std::uint32_t bits) {
  const std::uint32_t magnitude = bits & ~kSignBit;
  if (magnitude > kInfinityBits) return 0xffffffffu;
  return (bits & kSignBit) != 0 ? kSignBit - magnitude : kSignBit + magnitude;
}
/// Whether it is that of a number, neither infinite nor NaN.
CARTAN_EVERYWHERE inline bool is_order_of_finite(std::uint32_t order) {
  return order > kSignBit - kInfinityBits && order < kSignBit + kInfinityBits;
}
/// The bits of the float in this place.
CARTAN_EVERYWHERE inline std::uint32_t bits_in_place(std::uint32_t order) {
  return order < kSignBit ? kSignBit + (kSignBit - order) : order - kSignBit;
}

/// A logit of a token that the text has already (Ops::penalise_repeats).
CARTAN_EVERYWHERE inline float penalised(float logit, float penalty) {
  return logit > 0 ? logit / penalty : logit * penalty;
}

/// exp((logit - largest) / temperature) in units of 2^-40, rounded down, of logits up to the largest, which
/// is finite.   temperature > 0
class TokenWeight {
 public:
  static constexpr int kBits = 40;

  CARTAN_EVERYWHERE TokenWeight(float largest, double temperature)
      : largest_(static_cast<double>(largest)), scale_(kLog2E / temperature) {
    if (!(scale_ < kMost)) scale_ = kMost;
  }

  CARTAN_EVERYWHERE std::uint64_t operator()(float logit) const {
    const double exponent = (static_cast<double>(logit) - largest_) * scale_;
    if (!(exponent >= -kBits)) return 0;
    const int whole = static_cast<int>(exponent - 0.5);  // to the nearest
    const double power = exp2_near_0(exponent - whole);
    return static_cast<std::uint64_t>(power * static_cast<double>(std::uint64_t{1} << (kBits + whole)));
  }

 private:
  static constexpr double kLog2E = 1.4426950408889634, kMost = 0x1.fffffffffffffp+1023;

  /// 2^x for |x| <= 1/2: the first terms of its series, the rest is below 2^-42.
  CARTAN_EVERYWHERE static double exp2_near_0(double x) {
    constexpr double c1 = 0.69314718055994531, c2 = c1 * c1 / 2, c3 = c2 * c1 / 3, c4 = c3 * c1 / 4,
                     c5 = c4 * c1 / 5, c6 = c5 * c1 / 6, c7 = c6 * c1 / 7, c8 = c7 * c1 / 8, c9 = c8 * c1 / 9,
                     c10 = c9 * c1 / 10;
    double sum = c10;
    sum = sum * x + c9;
    sum = sum * x + c8;
    sum = sum * x + c7;
    sum = sum * x + c6;
    sum = sum * x + c5;
    sum = sum * x + c4;
    sum = sum * x + c3;
    sum = sum * x + c2;
    sum = sum * x + c1;
    return sum * x + 1;
  }

  double largest_, scale_;
};

/// total * share, rounded down or up, exactly.   share in [0, 1), bits below 2^-64 are dropped
CARTAN_EVERYWHERE inline std::uint64_t part_of(std::uint64_t total, double share, bool round_up) {
  const auto fraction = static_cast<std::uint64_t>(share * 0x1p64);
  constexpr std::uint64_t kLow = 0xffffffffu;
  const std::uint64_t a = total >> 32, b = total & kLow, c = fraction >> 32, d = fraction & kLow;
  const std::uint64_t middle = (b * d >> 32) + (a * d & kLow) + b * c;
  const std::uint64_t part = a * c + (a * d >> 32) + (middle >> 32);
  return part + (round_up && total * fraction != 0 ? 1 : 0);
}

}  // namespace cartan::device
