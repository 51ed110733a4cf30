// A thread that looks after the NCCL communicators of a rank. A call whose peer is gone never ends on the
// GPU, and whoever waits for the GPU waits for ever: so when a communicator fails, or a call takes too long,
// all of them are aborted, the waits return, and the next call on any thread throws what was found.
//
// NCCL allows ncclCommGetAsyncError and ncclCommAbort beside the calls of another thread; each communicator
// has a lock of its own for the handle, which is never held while anybody waits.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "comm/nccl/first_failure.hpp"

namespace cartan::comm {

struct WatchdogOptions {
  double interval_s = 0.1;  ///< between two looks
  /// After a failure, for the rank to end by the exception; then give_up ends the process.
  double grace_s = 10;
  int gpu = 0;  ///< current in the thread, or CUDA would open another one for it
};

class Watchdog {
 public:
  /// look() throws what it finds, abandon() ends all waits, give_up(failure) ends the process.
  struct Duties {
    std::function<void()> look;
    std::function<void()> abandon;
    std::function<void(std::exception_ptr)> give_up;
  };

  Watchdog(Duties duties, std::shared_ptr<FirstFailure> failure, const WatchdogOptions& options);
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  ~Watchdog();

 private:
  void run();
  /// Whether the end was asked for before so many seconds were over.
  bool is_ended_within(double seconds);

  Duties duties_;
  std::shared_ptr<FirstFailure> failure_;
  WatchdogOptions options_;
  std::mutex mutex_;
  std::condition_variable end_;
  bool ends_ = false;
  std::thread thread_;  // the last: it uses the others
};

/// Says on stderr why, and ends the job: for a rank whose main thread does not.
[[noreturn]] void end_process(const std::exception_ptr& failure);

}  // namespace cartan::comm
