// Copies between pageable host memory and the device, through two pinned buffers: the host fills or empties
// one while the other is under way.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <mutex>

namespace cartan::device::cuda {

/// Thread-safe.
class Staging {
 public:
  Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging();

  /// The source is free when the call returns.
  void copy_in(void* destination, const void* host_source, std::size_t size_bytes, cudaStream_t stream);
  /// Blocks the host until the bytes are there.
  void copy_out(void* host_destination, const void* source, std::size_t size_bytes, cudaStream_t stream);

  static constexpr std::size_t kPieceBytes = std::size_t{4} << 20;

 private:
  struct Piece {
    void* memory = nullptr;
    cudaEvent_t free = nullptr;  ///< recorded after the last copy from or to it
  };
  std::mutex mutex_;
  std::array<Piece, 2> pieces_;
  std::size_t next_ = 0;
};

}  // namespace cartan::device::cuda
