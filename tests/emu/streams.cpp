// Streams and events as the runtime's functions know them.
#include "capture.hpp"
#include "errors.hpp"
#include "executor.hpp"
#include "findings.hpp"

using emu::api, emu::Capturing;

namespace {

/// Whether a handle is none: null, or already destroyed.
bool is_unusable(const CUstream_st* stream) {
  if (!stream->destroyed) return false;
  emu::report("use of a stream that was destroyed");
  return true;
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return api("cudaStreamCreateWithFlags", cudaErrorMemoryAllocation, Capturing::allowed, [&] {
    // A blocking stream waits for the legacy stream behind the program's back.
    if (flags != cudaStreamNonBlocking) emu::report("a stream without cudaStreamNonBlocking");
    *stream = emu::make_stream();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const std::lock_guard lock(emu::big_lock());
  if (stream == nullptr || is_unusable(stream)) return emu::remember(cudaErrorInvalidResourceHandle);
  // What is enqueued still runs.
  stream->destroyed = true;
  return emu::sticky_error();
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return api("cudaStreamSynchronize", cudaErrorLaunchFailure, Capturing::refused, [&] {
    CUstream_st* const queue = emu::real_stream(stream);
    if (is_unusable(queue)) return cudaErrorInvalidResourceHandle;
    emu::wait_for_stream(queue);
    return emu::sticky_error();
  });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return api("cudaStreamQuery", cudaErrorLaunchFailure, Capturing::refused, [&] {
    CUstream_st* const queue = emu::real_stream(stream);
    emu::poke(queue);
    const std::lock_guard lock(emu::big_lock());
    if (!queue->queue.empty()) return cudaErrorNotReady;
    emu::wait_for_stream(queue);
    return emu::sticky_error();
  });
}

cudaError_t cudaDeviceSynchronize() {
  return api("cudaDeviceSynchronize", cudaErrorLaunchFailure, Capturing::refused, [&] {
    emu::wait_for_device();
    return emu::sticky_error();
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return api("cudaEventCreateWithFlags", cudaErrorMemoryAllocation, Capturing::allowed, [&] {
    *event = new CUevent_st;
    return cudaSuccess;
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const std::lock_guard lock(emu::big_lock());
  if (event == nullptr) return emu::remember(cudaErrorInvalidResourceHandle);
  delete event;
  return emu::sticky_error();
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return api("cudaEventRecord", cudaErrorLaunchFailure, Capturing::allowed, [&] {
    const std::lock_guard lock(emu::big_lock());
    CUstream_st* const queue = emu::real_stream(stream);
    if (event == nullptr || is_unusable(queue)) return cudaErrorInvalidResourceHandle;
    if (queue->capture != nullptr) return emu::capture_record(*queue, *event);
    event->capture = nullptr;
    event->last = emu::push_record(queue);
    return emu::sticky_error();
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return api("cudaStreamWaitEvent", cudaErrorLaunchFailure, Capturing::allowed, [&] {
    const std::lock_guard lock(emu::big_lock());
    CUstream_st* const queue = emu::real_stream(stream);
    if (event == nullptr || is_unusable(queue)) return cudaErrorInvalidResourceHandle;
    if (queue->capture != nullptr || event->capture != nullptr) return emu::capture_wait(*queue, *event);
    // An event that was never recorded holds nothing up.
    if (event->last != nullptr) emu::push_wait(queue, event->last);
    return emu::sticky_error();
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return api("cudaEventSynchronize", cudaErrorLaunchFailure, Capturing::allowed, [&] {
    if (event == nullptr) return cudaErrorInvalidResourceHandle;
    if (event->capture != nullptr) return emu::refuse_captured_event("cudaEventSynchronize");
    if (const auto last = event->last) emu::wait_for_event(last);
    return emu::sticky_error();
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return api("cudaEventQuery", cudaErrorLaunchFailure, Capturing::allowed, [&] {
    if (event == nullptr) return cudaErrorInvalidResourceHandle;
    if (event->capture != nullptr) return emu::refuse_captured_event("cudaEventQuery");
    const std::lock_guard lock(emu::big_lock());
    const auto last = event->last;
    if (last == nullptr) return cudaSuccess;
    if (!last->done) emu::poke(last->stream);
    if (emu::sticky_error() != cudaSuccess) return emu::sticky_error();
    if (!last->done) return cudaErrorNotReady;
    emu::wait_for_event(last);  // the host has seen it
    return cudaSuccess;
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return api("cudaEventElapsedTime", cudaErrorLaunchFailure, Capturing::allowed, [&] {
    const std::lock_guard lock(emu::big_lock());
    if (start == nullptr || end == nullptr || start->last == nullptr || end->last == nullptr)
      return cudaErrorInvalidResourceHandle;
    if (!start->last->done || !end->last->done) return cudaErrorNotReady;
    *milliseconds = std::chrono::duration<float, std::milli>(end->last->time - start->last->time).count();
    return emu::sticky_error();
  });
}
}
