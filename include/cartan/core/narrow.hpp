// Integer conversions that notice when a value does not fit.
#pragma once

#include <utility>

#include "cartan/core/error.hpp"

namespace cartan {

/// Converts between integer types. Throws InternalError if the value changes.
template <class To, class From>
constexpr To narrow(From value) {
  if (!std::in_range<To>(value)) throw InternalError("integer {} does not fit its type", value);
  return static_cast<To>(value);
}

constexpr long long ceil_div(long long a, long long b) { return (a + b - 1) / b; }
/// The next multiple.
constexpr long long round_up(long long value, long long multiple) {
  return ceil_div(value, multiple) * multiple;
}

}  // namespace cartan
