// Kernels as operations of a stream.
#pragma once

#include <cstddef>

namespace emu {

/// cudaFuncSetAttribute: launches of the kernel may ask for so much dynamic shared memory.
void allow_shared_bytes(const void* kernel, std::size_t bytes);

}  // namespace emu
