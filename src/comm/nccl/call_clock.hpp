// When calls on a GPU's streams begin and end: an event on either side, which somebody reads later. Reading
// makes the host see how far the GPU is, so it happens when a report is asked for and not call by call.
#pragma once

#include <nccl.h>

#include <chrono>
#include <mutex>
#include <optional>
#include <vector>

#include "comm/recorder.hpp"

namespace cartan::comm {

/// Thread-safe, but for destruction.
class CallClock {
 public:
  explicit CallClock(Recorder& recorder) : recorder_(recorder) {}
  CallClock(const CallClock&) = delete;
  CallClock& operator=(const CallClock&) = delete;
  ~CallClock();

  /// Call `sequence` of the recorder is enqueued on `stream` between begin and end, of which one pair is open
  /// at a time.
  void begin(std::uint64_t sequence, cudaStream_t stream);
  void end(cudaStream_t stream);
  /// Closes the calls that are over, with how long they took.
  void read();
  /// The oldest call that the GPU began so long ago, as far as this was asked, and that is not over. Reads.
  std::optional<std::uint64_t> overdue(double seconds);

 private:
  struct Call {
    std::uint64_t sequence;
    cudaEvent_t begin, end;
    std::optional<std::chrono::steady_clock::time_point> seen{};  ///< when it was first found begun
  };
  cudaEvent_t record(cudaStream_t stream);
  void read_locked();

  Recorder& recorder_;
  std::mutex mutex_;
  std::vector<Call> open_;  ///< in the order of issue
  std::vector<cudaEvent_t> spare_;
};

}  // namespace cartan::comm
