// kernels/warp/math.cuh on the host.
#pragma once

#include <cmath>
#include <limits>

namespace cartan::kernels::warp {

inline float exp2_fast(float x) {
  const float result = std::exp2(x);
  return result < std::numeric_limits<float>::min() ? 0.0f : result;
}

}  // namespace cartan::kernels::warp
