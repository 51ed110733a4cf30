// Numbers of fp32 in other types.
#pragma once

#include <cstddef>
#include <span>

#include "cartan/core/types.hpp"

namespace cartan {

/// out = values in fp32, bf16 or fp16, rounded to nearest even; out has room for just as many.
void convert_floats(std::span<const float> values, DType dtype, std::span<std::byte> out);

}  // namespace cartan
