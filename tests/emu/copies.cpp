// Copies and fills. What the host must leave alone while a copy is pending is checked: a pinned source is
// hashed when the copy is enqueued and when it runs, and a pinned target reads as NaN until then.
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "capture.hpp"
#include "errors.hpp"
#include "executor.hpp"
#include "pending_sources.hpp"
#include "runtime.h"

namespace emu {
namespace {

/// Where the bytes of a copy lie.
enum class Place { device, pinned, pageable };

Place place_of(const void* p) {
  if (is_device_address(p)) return Place::device;
  return is_pinned(p) ? Place::pinned : Place::pageable;
}

const char* fault_in(const void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  if (to == nullptr || from == nullptr) return "a null pointer";
  for (const void* const p : {to, from})
    if (place_of(p) != Place::pageable && !is_visible_to_device(p, bytes))
      return "bytes beyond an allocation";
  if (kind == cudaMemcpyDefault) return nullptr;
  const bool is_to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool is_from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (is_to_device != (place_of(to) == Place::device) || is_from_device != (place_of(from) == Place::device))
    return "pointers that contradict the kind of the copy";
  return nullptr;
}

/// Makes the work of one copy, when it is enqueued.
Work start_copy(void* to, const void* from, std::size_t count) {
  const Place from_place = place_of(from), to_place = place_of(to);
  if (to_place == Place::pinned && config.schedule != Schedule::eager && !is_pending_source(to, count))
    std::memset(to, 0xff, count);
  if (from_place == Place::pinned) {
    return [=, pending = add_pending_source(from, count)] {
      end_pending_source(pending);
      touch(from, count, false);
      touch(to, count, true);
      std::memmove(to, from, count);
      return Step::done;
    };
  }
  std::shared_ptr<std::vector<unsigned char>> staged;
  if (from_place == Place::pageable)
    staged = std::make_shared<std::vector<unsigned char>>(static_cast<const unsigned char*>(from),
                                                          static_cast<const unsigned char*>(from) + count);
  return [=] {
    if (from_place == Place::device) touch(from, count, false);
    if (to_place != Place::pageable) touch(to, count, true);
    std::memmove(to, staged == nullptr ? from : staged->data(), count);
    return Step::done;
  };
}

std::string name_of(const void* to, const void* from) {
  const bool to_device = place_of(to) == Place::device, from_device = place_of(from) == Place::device;
  if (to_device) return from_device ? "copy on the device" : "copy to the device";
  return from_device ? "copy from the device" : "copy on the host";
}

/// Enqueues a copy. `waits` is set where the host has to see its end: the runtime has no asynchronous copies
/// to pageable memory.
cudaError_t enqueue_copy(void* to, const void* from, std::size_t count, cudaMemcpyKind kind,
                         cudaStream_t stream, bool& waits) {
  const std::lock_guard lock(big_lock());
  if (const char* const why = fault_in(to, from, count, kind)) {
    report("a copy of " + std::to_string(count) + " bytes has " + why);
    return cudaErrorInvalidValue;
  }
  const bool is_pageable = place_of(to) == Place::pageable || place_of(from) == Place::pageable;
  if (is_pageable && real_stream(stream)->capture != nullptr) {
    invalidate_captures("a copy of pageable memory");
    return cudaErrorStreamCaptureUnsupported;
  }
  waits = waits || place_of(to) == Place::pageable;
  return enqueue(stream, Request{name_of(to, from), [=] { return start_copy(to, from, count); }});
}

cudaError_t copy(void* to, const void* from, std::size_t count, cudaMemcpyKind kind, cudaStream_t stream,
                 bool waits) {
  if (count == 0) return cudaSuccess;
  const cudaError_t error = enqueue_copy(to, from, count, kind, stream, waits);
  if (error != cudaSuccess || !waits) return error;
  wait_for_stream(real_stream(stream));
  return sticky_error();
}

cudaError_t fill(const char* call, void* to, std::size_t pitch, int value, std::size_t width,
                 std::size_t height, cudaStream_t stream) {
  if (width == 0 || height == 0) return cudaSuccess;
  const std::lock_guard lock(big_lock());
  if (pitch < width || !is_visible_to_device(to, (height - 1) * pitch + width)) {
    report(std::string(call) + " of bytes that are not in one allocation");
    return cudaErrorInvalidValue;
  }
  return enqueue(stream, call, [=] {
    for (std::size_t row = 0; row < height; ++row) {
      unsigned char* const first = static_cast<unsigned char*>(to) + row * pitch;
      touch(first, width, true);
      std::memset(first, value, width);
    }
    return Step::done;
  });
}

}  // namespace
}  // namespace emu

using emu::api, emu::Capturing;

extern "C" {

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t count, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return api("cudaMemcpyAsync", cudaErrorInvalidValue, Capturing::allowed,
             [&] { return emu::copy(to, from, count, kind, stream, false); });
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t count, cudaMemcpyKind kind) {
  return api("cudaMemcpy", cudaErrorInvalidValue, Capturing::refused,
             [&] { return emu::copy(to, from, count, kind, nullptr, true); });
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t count, cudaStream_t stream) {
  return api("cudaMemsetAsync", cudaErrorInvalidValue, Capturing::allowed,
             [&] { return emu::fill("cudaMemsetAsync", to, count, value, count, 1, stream); });
}

cudaError_t cudaMemset2DAsync(void* to, std::size_t pitch, int value, std::size_t width, std::size_t height,
                              cudaStream_t stream) {
  return api("cudaMemset2DAsync", cudaErrorInvalidValue, Capturing::allowed,
             [&] { return emu::fill("cudaMemset2DAsync", to, pitch, value, width, height, stream); });
}
}
