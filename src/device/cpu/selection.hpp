// The largest of many elements by their bits, without sorting: the threshold is found digit by digit, from
// sums over the elements of each digit among those that have the higher ones.
#pragma once

#include <array>
#include <cstdint>

#include "cartan/core/types.hpp"

namespace cartan::device::cpu {

/// All elements above the threshold, and the first `equal` of those that are equal to it.
struct Largest {
  std::uint32_t threshold = 0;
  Index equal = 0;
};

/// The fewest of the largest elements that measure at least `wanted` together, which is not 0 and not more
/// than all do.   order(i): of element i; measure(order): of an element
template <class Order, class Measure>
Largest find_largest(Index size, std::uint64_t wanted, const Order& order, const Measure& measure) {
  constexpr int kDigit = 8;
  Largest found;
  for (int shift = 32 - kDigit; shift >= 0; shift -= kDigit) {
    std::array<std::uint64_t, std::size_t{1} << kDigit> sums{};
    const std::uint64_t above = std::uint64_t{found.threshold} >> (shift + kDigit);
    for (Index i = 0; i < size; ++i) {
      const std::uint32_t bits = order(i);
      if (std::uint64_t{bits} >> (shift + kDigit) == above) sums[(bits >> shift) & 0xffu] += measure(bits);
    }
    std::uint32_t digit = 0xff;
    for (; sums[digit] < wanted; --digit) wanted -= sums[digit];
    found.threshold |= digit << shift;
  }
  const std::uint64_t each = measure(found.threshold);
  found.equal = static_cast<Index>((wanted + each - 1) / each);
  return found;
}

}  // namespace cartan::device::cpu
