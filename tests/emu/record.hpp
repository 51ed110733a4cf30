// Every launch of a program as a file, for tests/ptx, which runs the same launches on nvcc's code. The
// environment variable EMU_RECORD names the file; without it these functions do nothing.
//
// All numbers are 64-bit. A launch is: the kernel's address from the start of the executable; grid and block,
// three numbers each; bytes of dynamic shared memory; the parameters, laid out as the driver does, after
// their count of bytes; the device's allocations (count, then address and bytes of each); the memory that
// changed since the launch before (count, then address and kRecordedPiece bytes of each); and the same for
// what the launch changed.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace emu {

struct Body;

inline constexpr std::size_t kRecordedPiece = 64;

void record_before(dim3 grid, dim3 block, std::size_t shared_bytes, const Body& body);
void record_after();

}  // namespace emu
