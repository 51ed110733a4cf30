// The first failure of any NCCL communicator of a rank. What fails afterwards, on whatever thread, fails
// because of it and says so.
#pragma once

#include <atomic>
#include <exception>
#include <mutex>

namespace cartan::comm {

/// Thread-safe.
class FirstFailure {
 public:
  /// Kept unless there is one already.
  void note(std::exception_ptr failure) {
    const std::lock_guard lock(mutex_);
    if (failure_ != nullptr) return;
    failure_ = std::move(failure);
    happened_.store(true, std::memory_order_release);
  }
  bool happened() const { return happened_.load(std::memory_order_acquire); }
  /// Throws it, if there is one. Costs a load while there is none.
  void check() const {
    if (happened()) std::rethrow_exception(failure_);  // which does not change any more
  }

 private:
  std::mutex mutex_;
  std::exception_ptr failure_;
  std::atomic<bool> happened_ = false;
};

}  // namespace cartan::comm
