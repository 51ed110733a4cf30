// What there is to know about the emulated GPUs: all alike, like an H100 in size; a process uses one.
#include "device_info.hpp"

#include <cstring>

#include "errors.hpp"
#include "launch.hpp"
#include "settings.hpp"

using emu::api, emu::config, emu::Capturing;

int emu::compute_capability = 90;

namespace {

constexpr int kSharedBytesWithoutAsking = 48 << 10, kSharedBytes = 227 << 10;
int current_device = 0;

bool exists(int device) { return device >= 0 && device < config.gpus; }

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  return api("cudaGetDeviceCount", cudaErrorInitializationError, Capturing::allowed, [&] {
    *count = config.gpus;
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return api("cudaSetDevice", cudaErrorInitializationError, Capturing::allowed, [&] {
    if (!exists(device)) return cudaErrorInvalidDevice;
    current_device = device;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return api("cudaGetDevice", cudaErrorInitializationError, Capturing::allowed, [&] {
    *device = current_device;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return api("cudaGetDeviceProperties", cudaErrorInitializationError, Capturing::allowed, [&] {
    if (!exists(device)) return cudaErrorInvalidDevice;
    *properties = {};
    std::strcpy(properties->name, "emulated");
    properties->totalGlobalMem = config.device_bytes;
    properties->major = emu::compute_capability / 10;
    properties->minor = emu::compute_capability % 10;
    properties->multiProcessorCount = config.multiprocessors;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = 1024;
    properties->sharedMemPerBlock = kSharedBytesWithoutAsking;
    properties->sharedMemPerBlockOptin = kSharedBytes;
    properties->sharedMemPerMultiprocessor = kSharedBytes + 1024;
    properties->l2CacheSize = 50 << 20;
    properties->pciBusID = config.first_bus + device;
    return cudaSuccess;
  });
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  return api("cudaFuncSetAttribute", cudaErrorInvalidValue, Capturing::allowed, [&] {
    if (kernel == nullptr || attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value > kSharedBytes)
      return cudaErrorInvalidValue;
    emu::allow_shared_bytes(kernel, static_cast<std::size_t>(value));
    return cudaSuccess;
  });
}
}
