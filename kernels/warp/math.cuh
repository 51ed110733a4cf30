// Fast functions that C++ has no spelling for; tests have a file of the same name.
#pragma once

namespace cartan::kernels::warp {

/// 2^x within 2 units in the last place, in one instruction; results below 2^-126 are 0. Exact for 0 and
/// -infinity.
__device__ __forceinline__ float exp2_fast(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

}  // namespace cartan::kernels::warp
