// Elements of device memory as floats.
#pragma once

#include <library_types.h>

#include <cstddef>

namespace emu {

/// fp32, bf16 or fp16; 16-bit results are rounded to nearest even.
void read_floats(cudaDataType type, const void* from, std::size_t count, float* to);
void write_floats(cudaDataType type, const float* from, std::size_t count, void* to);

}  // namespace emu
