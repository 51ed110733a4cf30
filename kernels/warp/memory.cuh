// Memory instructions that C++ has no spelling for. The tests have a file of the same name that does the same
// on the host; kernels include it as <warp/memory.cuh>.
#pragma once

#include <cuda_runtime.h>

#include <cstring>

namespace cartan::kernels::warp {

/// The dynamic shared memory of the launch, aligned to 128 bytes.
template <class T>
__device__ __forceinline__ T* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char dynamic_shared_bytes[];
  return reinterpret_cast<T*>(dynamic_shared_bytes);
}

/// One 16-byte access of global or shared memory at a multiple of 16.
__device__ __forceinline__ void load16(void* to, const void* from) {
  const uint4 value = *static_cast<const uint4*>(from);
  memcpy(to, &value, sizeof value);
}

__device__ __forceinline__ void store16(void* to, const void* from) {
  uint4 value;
  memcpy(&value, from, sizeof value);
  *static_cast<uint4*>(to) = value;
}

/// Sixteen bytes from global to shared memory without a register in between. They are there after commit,
/// wait and a barrier.
__device__ __forceinline__ void cp_async16(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(shared))),
               "l"(global)
               : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Until at most kPending of this thread's committed groups are under way.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace cartan::kernels::warp
