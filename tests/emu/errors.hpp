// Errors of the runtime: the last one of a call, and the sticky one that a failed operation leaves in the
// context.
#pragma once

#include <cuda_runtime_api.h>

#include <mutex>

namespace emu {

/// Guards all state of the stand-ins. Operations run under it.
std::recursive_mutex& big_lock();

/// An operation failed while it ran: every later call returns this error.
void set_sticky_error(cudaError_t error);
cudaError_t sticky_error();
void clear_errors();

/// What an entry point may do while a stream is being captured.
enum class Capturing { allowed, refused };

/// What an entry point has to return before it does anything: no driver, no GPU, a sticky error, EMU_FAIL's
/// turn, a call that a capture does not allow. `failure` is what EMU_FAIL makes of the call.
cudaError_t begin_call(const char* call, cudaError_t failure, Capturing capturing = Capturing::allowed);

/// Remembers the error for cudaGetLastError.
cudaError_t remember(cudaError_t error);

/// An entry point: body() unless begin_call has an error.
template <class Body>
cudaError_t api(const char* call, cudaError_t failure, Capturing capturing, const Body& body) {
  const cudaError_t early = begin_call(call, failure, capturing);
  return remember(early != cudaSuccess ? early : body());
}

}  // namespace emu
