#include "errors.hpp"

#include <utility>

#include "capture.hpp"
#include "findings.hpp"
#include "settings.hpp"

namespace emu {
namespace {

cudaError_t sticky = cudaSuccess;
thread_local cudaError_t last = cudaSuccess;

struct Description {
  cudaError_t error;
  const char *name, *text;
};

constexpr Description kDescriptions[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources",
     "too many resources requested for launch"},
    {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge",
     "operation would result in a merge of separate capture sequences"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "capture was not ended in the same stream as it began"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a "
     "capturing stream"},
};

Description description_of(cudaError_t error) {
  for (const Description& description : kDescriptions)
    if (description.error == error) return description;
  return {error, "cudaErrorUnknown", "unknown error"};
}

}  // namespace

std::recursive_mutex& big_lock() {
  static std::recursive_mutex& lock = *new std::recursive_mutex;
  return lock;
}

void set_sticky_error(cudaError_t error) {
  if (sticky == cudaSuccess) sticky = error;
}

cudaError_t sticky_error() { return sticky; }

void clear_errors() { sticky = last = cudaSuccess; }

cudaError_t begin_call(const char* call, cudaError_t failure, Capturing capturing) {
  const std::lock_guard lock(big_lock());
  if (!config.has_driver) return cudaErrorInsufficientDriver;
  if (config.gpus == 0) return cudaErrorNoDevice;
  if (sticky != cudaSuccess) return sticky;
  if (is_to_fail(call)) return failure;
  if (capturing == Capturing::refused && invalidate_captures(call)) return cudaErrorStreamCaptureUnsupported;
  return cudaSuccess;
}

cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last = error;
  return error;
}

}  // namespace emu

extern "C" {

cudaError_t cudaGetLastError() {
  const std::lock_guard lock(emu::big_lock());
  const cudaError_t error = std::exchange(emu::last, cudaSuccess);
  return emu::sticky != cudaSuccess ? emu::sticky : error;
}

cudaError_t cudaPeekAtLastError() {
  const std::lock_guard lock(emu::big_lock());
  return emu::sticky != cudaSuccess ? emu::sticky : emu::last;
}

const char* cudaGetErrorName(cudaError_t error) { return emu::description_of(error).name; }
const char* cudaGetErrorString(cudaError_t error) { return emu::description_of(error).text; }
}
