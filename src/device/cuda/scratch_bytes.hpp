// What a cuda device sets aside for its own scratch, all streams together. Knows nothing of CUDA, so that
// every build can count it.
#pragma once

#include <cstddef>

namespace cartan::device::cuda {

inline constexpr std::size_t kDeviceScratchBytes = std::size_t{208} << 20;

}  // namespace cartan::device::cuda
