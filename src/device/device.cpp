// Which devices exist in this build.
#include "cartan/device/device.hpp"

#include "cartan/core/error.hpp"
#include "device/cpu/cpu_device.hpp"
#include "device/cuda/cuda_device.hpp"

namespace cartan::device {

DeviceKind device_kind_from_name(std::string_view name) {
  if (name == "cpu") return DeviceKind::cpu;
  if (name == "cuda") return DeviceKind::cuda;
  if (name == "sim") return DeviceKind::sim;
  throw ConfigError("run.device = {} is not a device: use cpu, cuda or sim", name);
}

std::unique_ptr<Device> make_device(DeviceKind kind, const DeviceOptions& options) {
  switch (kind) {
    case DeviceKind::cpu:
      return cpu::make_cpu_device(options);
    case DeviceKind::cuda:
      return cuda::make_cuda_device(options);
    case DeviceKind::sim:
      return make_sim_device(DeviceKind::cpu, options);
  }
  throw InternalError("device kind {} does not exist", static_cast<int>(kind));
}

}  // namespace cartan::device
