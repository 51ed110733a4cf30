// What every kernel may use: element types, dispatch on them, 16-byte packs, sums over warps and blocks,
// launch.
//
// Rules for kernels: plain CUDA C++ that g++ can compile too (the tests execute the same files on the host),
// so no #ifdef, no asm, no <<<>>>, no libraries. What has no C++ spelling is a named helper in warp/*.cuh.
// Every sum has a fixed order; multiplications and additions are fused only where fmaf says so.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include <warp/memory.cuh>
#include "cartan/core/types.hpp"
#include "host.hpp"

namespace cartan::kernels {

using bf16 = __nv_bfloat16;
using half = __half;

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(half x) { return __half2float(x); }

/// Rounds to nearest even.
template <class T>
__device__ __forceinline__ T from_float(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else if constexpr (std::is_same_v<T, bf16>) {
    return __float2bfloat16(x);
  } else {
    return __float2half(x);
  }
}

/// Sixteen bytes of elements: what a thread moves at once. Addresses are multiples of 16.
template <class T>
inline constexpr int kPack = 16 / static_cast<int>(sizeof(T));

template <class T>
struct alignas(16) Pack {
  T at[kPack<T>];
};

template <class T>
__device__ __forceinline__ Pack<T> load_pack(const T* from) {
  Pack<T> pack;
  warp::load16(pack.at, from);
  return pack;
}

template <class T>
__device__ __forceinline__ void store_pack(T* to, const Pack<T>& pack) {
  warp::store16(to, pack.at);
}

/// Half a pack, for elements that lie beside others of twice their size.
template <class T>
struct alignas(8) HalfPack {
  T at[kPack<T> / 2];
};

template <class T>
__device__ __forceinline__ HalfPack<T> load_half_pack(const T* from) {
  const uint2 bits = *reinterpret_cast<const uint2*>(from);
  HalfPack<T> half_pack;
  memcpy(half_pack.at, &bits, sizeof bits);
  return half_pack;
}

template <class T>
__device__ __forceinline__ void store_half_pack(T* to, const HalfPack<T>& half_pack) {
  uint2 bits;
  memcpy(&bits, half_pack.at, sizeof bits);
  *reinterpret_cast<uint2*>(to) = bits;
}

/// Whether rows of this stride that start here can be moved in packs.
template <class T>
bool is_packed(const T* data, Index stride) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && stride % kPack<T> == 0;
}

__device__ __forceinline__ float warp_sum(float x) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(kAllLanes, x, distance);
  return x;
}

__device__ __forceinline__ float warp_max(float x) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, distance));
  return x;
}

/// Room that a block-wide sum or maximum needs in shared memory.
struct BlockScratch {
  float warp[kWarp];
  float all;
};

/// combine over all threads of the block (whole warps), the same value to each; `neutral` changes no value.
/// Its two barriers keep calls with the same scratch apart.
template <class WarpWide>
__device__ __forceinline__ float block_wide(float x, float neutral, BlockScratch& scratch,
                                            const WarpWide& warp_wide) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, number = static_cast<int>(threadIdx.x) / kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  x = warp_wide(x);
  if (lane == 0) scratch.warp[number] = x;
  __syncthreads();
  if (number == 0) {
    x = warp_wide(lane < warps ? scratch.warp[lane] : neutral);
    if (lane == 0) scratch.all = x;
  }
  __syncthreads();
  return scratch.all;
}

__device__ __forceinline__ float block_sum(float x, BlockScratch& scratch) {
  return block_wide(x, 0.0f, scratch, [](float value) { return warp_sum(value); });
}

__device__ __forceinline__ float block_max(float x, BlockScratch& scratch) {
  return block_wide(x, -INFINITY, scratch, [](float value) { return warp_max(value); });
}

struct Grid {
  dim3 blocks, threads;
  unsigned shared_bytes = 0;  ///< dynamic shared memory
};

/// The only launch in the program; an empty grid launches nothing.
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), const Grid& grid, cudaStream_t stream,
            Arguments&&... arguments) {
  if (grid.blocks.x == 0 || grid.blocks.y == 0 || grid.blocks.z == 0) return;
  constexpr unsigned kWithoutAsking = 48 * 1024;
  if (grid.shared_bytes > kWithoutAsking)
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(grid.shared_bytes)),
          name);
  cudaLaunchConfig_t config{};
  config.gridDim = grid.blocks;
  config.blockDim = grid.threads;
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = stream;
  check(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...), name);
}

/// Blocks of `size` that cover `count`.
inline unsigned blocks_for(Index count, Index size) {
  return static_cast<unsigned>((count + size - 1) / size);
}

/// Calls f with a value of the element type: f(float{}), f(bf16{}) or f(half{}).
template <class F>
void dispatch(DType dtype, const F& f) {
  switch (dtype) {
    case DType::f32:
      return f(float{});
    case DType::bf16:
      return f(bf16{});
    case DType::f16:
      return f(half{});
    default:
      refuse(dtype);
  }
}

}  // namespace cartan::kernels
