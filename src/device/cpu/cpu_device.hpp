// The host as a device.
#pragma once

#include <memory>

#include "cartan/device/device.hpp"
#include "device/cpu/gemm.hpp"

namespace cartan::device::cpu {

std::unique_ptr<Device> make_cpu_device(const DeviceOptions& options);
/// With the way of multiplying bf16 numbers chosen by the caller: tests compare both.
std::unique_ptr<Device> make_cpu_device(const DeviceOptions& options, Gemm::Bf16Products bf16_products);

/// Scratch bytes of a device with so many threads: one part for each, and one for work on other streams.
std::size_t device_scratch_bytes(int threads);

}  // namespace cartan::device::cpu
