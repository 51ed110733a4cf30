// Forced into every kernels/*.cu that g++ compiles: gives the language of CUDA C++ a meaning on the host. The
// threads of a block are fibers of one thread of the host (thread.hpp), so shared memory is memory of that
// thread.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernel_body.hpp"
#include "thread.hpp"

// Only a launch needs the types of its parameters; the rest of the runtime is functions.
#define cudaLaunchKernelEx ::emu::launch

#undef __shared__
#define __shared__ static thread_local
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__

// Variables, not macros: cudaLaunchConfig_t has members of these names.
extern thread_local constinit uint3 threadIdx, blockIdx;
extern thread_local constinit dim3 blockDim, gridDim;
inline constexpr int warpSize = 32;

#include "device_atomics.hpp"
#include "device_math.hpp"
#include "device_warp.hpp"
