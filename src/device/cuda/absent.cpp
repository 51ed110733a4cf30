// In place of the cuda device, in builds without CUDA.
#include "cartan/core/error.hpp"
#include "cartan/device/cuda_info.hpp"
#include "cartan/device/cuda_stream.hpp"
#include "device/cuda/cuda_device.hpp"

namespace cartan::device::cuda {

std::unique_ptr<Device> make_cuda_device(const DeviceOptions&) {
  throw EnvironmentError(
      "run.device = cuda: this cartan was built without CUDA (cmake says why: its CUDA line); use run.device "
      "= cpu");
}

}  // namespace cartan::device::cuda

namespace cartan::device {

std::string cuda_version() { return {}; }

std::string gpu_address() { return {}; }

CUstream_st* native_stream(Stream&) { return nullptr; }

void copy_on_gpu(void*, const void*, std::size_t, Stream& stream) {
  throw InternalError("stream {} is not one of a GPU", stream.name());
}

void finish_gpu(Stream&) noexcept {}

}  // namespace cartan::device
