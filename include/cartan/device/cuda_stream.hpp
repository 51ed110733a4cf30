// What communicators need of the streams of a GPU; every build has it.
#pragma once

#include <cstddef>

#include "cartan/device/stream.hpp"

struct CUstream_st;

namespace cartan::device {

/// The stream as CUDA's libraries know it; null if it is not one of a GPU.
CUstream_st* native_stream(Stream& stream);

/// Copies between places in a GPU's memory, which do not overlap, ordered on `stream`, one of that GPU's.
void copy_on_gpu(void* to, const void* from, std::size_t size_bytes, Stream& stream);

/// Blocks until the GPU is done with all work, that of its compute stream first. For who gives memory back;
/// what failed is told to those who wait for it.
void finish_gpu(Stream& compute) noexcept;

}  // namespace cartan::device
