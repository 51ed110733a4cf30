// Memory that NCCL allocates, and buffers that a program registers with it.
#include <cuda_runtime_api.h>

#include <set>

#include "nccl_comm.hpp"
#include "runtime.h"

namespace {

struct Registration {
  emu::nccl::Shared communicator;
};

std::set<void*>& registrations = *new std::set<void*>;

}  // namespace

extern "C" {

ncclResult_t ncclMemAlloc(void** data, std::size_t bytes) {
  if (const ncclResult_t early = emu::nccl::begin_call("ncclMemAlloc"); early != ncclSuccess) return early;
  return cudaMalloc(data, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

// Unlike cudaFree it is not said to wait for anything: the memory goes in the order of a stream that knows
// only what the host has seen.
ncclResult_t ncclMemFree(void* data) {
  cudaStream_t stream = nullptr;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return ncclUnhandledCudaError;
  const cudaError_t freed = cudaFreeAsync(data, stream);
  cudaStreamDestroy(stream);
  return freed == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclCommRegister(const ncclComm_t handle, void* data, std::size_t bytes, void** registration) {
  constexpr const char* kCall = "ncclCommRegister";
  if (const ncclResult_t early = emu::nccl::begin_call(kCall); early != ncclSuccess) return early;
  const emu::nccl::Shared communicator = emu::nccl::find(kCall, handle);
  if (communicator == nullptr) return ncclInvalidArgument;
  const std::lock_guard lock(emu::big_lock());
  if (communicator->setup)
    return emu::nccl::misuse("ncclCommRegister on a communicator that is still in progress");
  if (!emu::is_device_range(data, bytes))
    return emu::nccl::misuse("ncclCommRegister of memory that is not the device's", ncclInvalidArgument);
  *registration = new Registration{communicator};
  registrations.insert(*registration);
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t handle, void* registration) {
  constexpr const char* kCall = "ncclCommDeregister";
  const emu::nccl::Shared communicator = emu::nccl::find(kCall, handle);
  if (communicator == nullptr) return ncclInvalidArgument;
  const std::lock_guard lock(emu::big_lock());
  const bool is_known = registrations.count(registration) > 0 &&
                        static_cast<Registration*>(registration)->communicator == communicator;
  if (!is_known)
    return emu::nccl::misuse("ncclCommDeregister of what was not registered", ncclInvalidArgument);
  registrations.erase(registration);
  delete static_cast<Registration*>(registration);
  return ncclSuccess;
}
}
