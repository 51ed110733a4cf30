#include "patterns.hpp"

#include <cuda_runtime.h>

#include <warp/memory.cuh>

namespace emu::testing {
namespace {

using cartan::kernels::warp::load16;
using cartan::kernels::warp::store16;

__global__ void copy_packs_kernel(float* out, const float* in) {
  float pack[4];
  load16(pack, in + 4 * threadIdx.x);
  store16(out + 4 * threadIdx.x, pack);
}

template <int kPadding>
__global__ void transpose_kernel(float* out, const float* in) {
  __shared__ float tile[32][32 + kPadding];
  const unsigned lane = threadIdx.x;
  for (unsigned row = 0; row < 32; ++row) tile[row][lane] = in[row * 32 + lane];
  __syncwarp();
  for (unsigned row = 0; row < 32; ++row) out[row * 32 + lane] = tile[lane][row];
}

__global__ void copy_strided_kernel(float* out, const float* in) { out[threadIdx.x] = in[8 * threadIdx.x]; }

__global__ void copy_first_kernel(float* out, const float* in) { out[threadIdx.x] = in[0]; }

__global__ void copy_shifted_kernel(float* out, const float* in) { out[threadIdx.x] = in[1 + threadIdx.x]; }

__global__ void copy_packs_through_shared_kernel(float* out, const float* in) {
  __shared__ __align__(16) float room[4 * kPatternThreads];
  float pack[4];
  load16(pack, in + 4 * threadIdx.x);
  store16(room + 4 * threadIdx.x, pack);
  load16(pack, room + 4 * threadIdx.x);
  store16(out + 4 * threadIdx.x, pack);
}

// Packs lie 32 bytes apart in global memory, 144 in shared memory: a sector for each, and no conflicts.
__global__ void copy_packs_async_kernel(float* out, const float* in) {
  __shared__ __align__(16) float room[36 * 8];
  float pack[4] = {};
  if (threadIdx.x < 8) cartan::kernels::warp::cp_async16(room + 36 * threadIdx.x, in + 8 * threadIdx.x);
  cartan::kernels::warp::cp_async_commit();
  cartan::kernels::warp::cp_async_wait<0>();
  if (threadIdx.x < 8) load16(pack, room + 36 * threadIdx.x);
  store16(out + 4 * threadIdx.x, pack);
}

}  // namespace

const PatternKernel copy_packs = copy_packs_kernel;
const PatternKernel transpose_with_conflicts = transpose_kernel<0>, transpose_padded = transpose_kernel<1>;
const PatternKernel copy_strided = copy_strided_kernel, copy_shifted = copy_shifted_kernel;
const PatternKernel copy_first = copy_first_kernel;
const PatternKernel copy_packs_through_shared = copy_packs_through_shared_kernel;
const PatternKernel copy_packs_async = copy_packs_async_kernel;

}  // namespace emu::testing
