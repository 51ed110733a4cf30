// Sums of doubles without rounding, so that their order does not matter: over rows, ranks, stages in whatever
// arrangement, the result has the same bits. For scalars (loss, gradient norm); arrays are summed along
// the canonical tree.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace cartan {

/// A fixed-point number wide enough for every finite double (Kulisch accumulator): digits of 32 bits in words
/// of 64, which leave room for carries.
class ExactSum {
 public:
  /// Of words().
  static constexpr std::size_t kWordCount = 71;

  ExactSum() = default;
  /// From what words() gave, or a sum of such.
  explicit ExactSum(std::span<const std::int64_t, kWordCount> words);

  void add(double x);
  ExactSum& operator+=(const ExactSum& other);
  /// The sum rounded to nearest; infinite or NaN as a sum in any order would be.
  double value() const;

  /// The state as integers. Adding the words of several sums gives the words of their total (of up to 2^20
  /// sums).
  std::span<std::int64_t, kWordCount> words();

 private:
  static constexpr int kDigitBits = 32;
  static constexpr int kLowest = -1074;  ///< exponent of the smallest double
  static constexpr int kDigits = (1024 - kLowest) / kDigitBits + 3;
  static constexpr std::int64_t kAddsBetweenCarries = std::int64_t{1} << 30;

  enum Special { kNan = kDigits, kPlusInfinity, kMinusInfinity, kWords };
  static_assert(kWords == kWordCount);
  void carry();

  std::array<std::int64_t, kWords> words_{};
  std::int64_t adds_ = 0;
};

}  // namespace cartan
