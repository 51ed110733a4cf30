// Device memory that a kernel may use while it runs; the next one on the same stream may use it again.
#pragma once

#include <cstddef>

namespace cartan::kernels {

struct Scratch {
  void* data = nullptr;
  std::size_t bytes = 0;
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

/// What every device sets aside for one stream of kernels: families stay below it, in pieces where need be.
inline constexpr std::size_t kScratchBytes = std::size_t{8} << 20;

}  // namespace cartan::kernels
