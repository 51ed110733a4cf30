// Elements of device memory as floats.
#pragma once

#include <library_types.h>

#include <cstddef>

namespace emu {

/// fp32, bf16, fp16, e4m3 or e5m2; results are rounded to nearest even, 8 bits to finite numbers.
void read_floats(cudaDataType type, const void* from, std::size_t count, float* to);
void write_floats(cudaDataType type, const float* from, std::size_t count, void* to);

}  // namespace emu
