#include "cartan/core/exact_sum.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace cartan {

ExactSum::ExactSum(std::span<const std::int64_t, kWordCount> words) {
  std::copy(words.begin(), words.end(), words_.begin());
}

void ExactSum::add(double x) {
  if (std::isnan(x)) {
    ++words_[kNan];
  } else if (std::isinf(x)) {
    ++words_[x > 0 ? kPlusInfinity : kMinusInfinity];
  } else if (x != 0) {
    if (++adds_ == kAddsBetweenCarries) carry();
    int exponent = 0;
    const double fraction = std::frexp(std::abs(x), &exponent);  // in [0.5, 1)
    // x = mantissa * 2^(exponent - 53); subnormal numbers have zeros at the mantissa's end.
    auto mantissa = static_cast<std::uint64_t>(std::ldexp(fraction, 53));
    int position = exponent - 53 - kLowest;
    if (position < 0) {
      mantissa >>= -position;
      position = 0;
    }
    const std::int64_t sign = x < 0 ? -1 : 1;
    const auto digit = static_cast<std::size_t>(position / kDigitBits);
    const auto wide = static_cast<unsigned __int128>(mantissa) << (position % kDigitBits);
    for (std::size_t i = 0; i < 3; ++i)
      words_[digit + i] +=
          sign * static_cast<std::int64_t>(static_cast<std::uint32_t>(wide >> (i * kDigitBits)));
  }
}

ExactSum& ExactSum::operator+=(const ExactSum& other) {
  carry();
  ExactSum carried = other;
  carried.carry();
  for (std::size_t i = 0; i < words_.size(); ++i) words_[i] += carried.words_[i];
  return *this;
}

// Afterwards every digit but the highest lies in [0, 2^32).
void ExactSum::carry() {
  std::int64_t over = 0;
  for (std::size_t i = 0; i + 1 < kDigits; ++i) {
    const std::int64_t digit = words_[i] + over;
    over = digit >> kDigitBits;  // rounds down
    words_[i] = digit - over * (std::int64_t{1} << kDigitBits);
  }
  words_[kDigits - 1] += over;
  adds_ = 0;
}

std::span<std::int64_t, ExactSum::kWordCount> ExactSum::words() {
  carry();
  return words_;
}

double ExactSum::value() const {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const bool plus = words_[kPlusInfinity] > 0, minus = words_[kMinusInfinity] > 0;
  if (words_[kNan] > 0 || (plus && minus)) return std::numeric_limits<double>::quiet_NaN();
  if (plus || minus) return plus ? kInfinity : -kInfinity;

  ExactSum sum = *this;
  sum.carry();
  const bool negative = sum.words_[kDigits - 1] < 0;
  if (negative) {
    for (std::size_t i = 0; i < kDigits; ++i) sum.words_[i] = -sum.words_[i];
    sum.carry();
  }
  std::size_t top = kDigits - 1;
  while (top > 2 && sum.words_[top] == 0) --top;
  // Three digits hold at least 65 significant bits where there are that many; whatever lies below only
  // decides ties.
  unsigned __int128 high = 0;
  for (std::size_t i = 0; i < 3; ++i)
    high = (high << kDigitBits) + static_cast<std::uint64_t>(sum.words_[top - i]);
  for (std::size_t i = 0; i + 2 < top; ++i)
    if (sum.words_[i] != 0) high |= 1;
  const double rounded =
      std::ldexp(static_cast<double>(high), static_cast<int>(top - 2) * kDigitBits + kLowest);
  return negative ? -rounded : rounded;
}

}  // namespace cartan
