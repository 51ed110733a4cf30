// Numbers and element types shared by every room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace cartan {

/// Signed everywhere, so that differences are numbers too. Counts elements, never bytes.
using Index = std::int64_t;

enum class DType : std::uint8_t { f32, bf16, f16, f64, i32, i64 };

/// Bytes of one element.
std::size_t size_of(DType dtype);
/// "fp32", "bf16", ... as in the key precision.compute.
std::string_view name_of(DType dtype);
/// Inverse of name_of. Throws ConfigError.
DType dtype_from_name(std::string_view name);

}  // namespace cartan
