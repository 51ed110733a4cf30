// A GPU: memory from the driver's stream-ordered pool, streams, pinned staging, kernels and cuBLASLt.
#pragma once

#include <memory>

#include "cartan/device/device.hpp"

namespace cartan::device::cuda {

/// The GPU of this rank. Throws EnvironmentError: no driver, no GPU, more ranks on the node than GPUs, or one
/// that is too old.
std::unique_ptr<Device> make_cuda_device(const DeviceOptions& options);

}  // namespace cartan::device::cuda
