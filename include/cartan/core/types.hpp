// Numbers and element types shared by every room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace cartan {

/// Signed everywhere, so that differences are numbers too. Counts elements, never bytes.
using Index = std::int64_t;

/// e4m3 and e5m2 have 8 bits (core/float8.hpp): operands of matrix products only.
enum class DType : std::uint8_t { f32, bf16, f16, f64, i32, i64, e4m3, e5m2 };

inline constexpr bool has_8_bits(DType dtype) { return dtype == DType::e4m3 || dtype == DType::e5m2; }

/// Bytes of one element.
std::size_t size_of(DType dtype);
/// "fp32", "bf16", ... as in the key precision.compute.
std::string_view name_of(DType dtype);
/// Inverse of name_of. Throws ConfigError.
DType dtype_from_name(std::string_view name);

}  // namespace cartan
