#include "comm/nccl/call_clock.hpp"

#include <algorithm>

#include "cartan/core/clock.hpp"
#include "comm/nccl/check.hpp"

namespace cartan::comm {
namespace {

/// Unread calls that may pile up.
constexpr std::size_t kMostOpen = 4096;

}  // namespace

CallClock::~CallClock() {
  for (const Call& call : open_)
    for (cudaEvent_t event : {call.begin, call.end})
      if (event != nullptr) cudaEventDestroy(event);
  for (cudaEvent_t event : spare_) cudaEventDestroy(event);
}

void CallClock::begin(std::uint64_t sequence, cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  if (open_.size() >= kMostOpen) read_locked();
  open_.push_back({sequence, record(stream), nullptr, {}});
}

void CallClock::end(cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  open_.back().end = record(stream);
}

void CallClock::read() {
  const std::lock_guard lock(mutex_);
  read_locked();
}

std::optional<std::uint64_t> CallClock::overdue(double seconds) {
  const std::lock_guard lock(mutex_);
  read_locked();
  for (Call& call : open_) {
    if (!call.seen && cudaEventQuery(call.begin) == cudaSuccess) call.seen = Clock::now();
    if (call.seen && seconds_since(*call.seen) > seconds) return call.sequence;
  }
  return std::nullopt;
}

void CallClock::read_locked() {
  const auto is_over = [&](const Call& call) {
    // A call that failed never ends; nor does anything that is asked of a GPU after a failure.
    if (call.end == nullptr || cudaEventQuery(call.end) != cudaSuccess) return false;
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, call.begin, call.end), "cudaEventElapsedTime");
    recorder_.close(call.sequence, static_cast<double>(milliseconds) * 1e-3, true);
    spare_.push_back(call.begin);
    spare_.push_back(call.end);
    return true;
  };
  open_.erase(std::remove_if(open_.begin(), open_.end(), is_over), open_.end());
}

cudaEvent_t CallClock::record(cudaStream_t stream) {
  cudaEvent_t event = nullptr;
  if (spare_.empty()) {
    check(cudaEventCreateWithFlags(&event, cudaEventDefault), "cudaEventCreateWithFlags");
  } else {
    event = spare_.back();
    spare_.pop_back();
  }
  check(cudaEventRecord(event, stream), "cudaEventRecord");
  return event;
}

}  // namespace cartan::comm
