// Slabs of device memory, copied to the host, which is where files are written from.
#pragma once

#include <span>
#include <vector>

#include "cartan/device/device.hpp"
#include "cartan/store/checkpoint.hpp"

namespace cartan::store {

/// Keeps its buffer (as large as the slabs, booked in the device's ledger, kind io) from one copy to the
/// next.
class SlabCopy {
 public:
  explicit SlabCopy(device::Device& device) : device_(device) {}

  /// Points the slabs at copies of their data. Neighbours in the device's memory travel together.
  void copy(std::span<Slab> slabs, std::span<const TensorInfo> tensors);

 private:
  device::Device& device_;
  device::Buffer buffer_;
};

}  // namespace cartan::store
