// The NCCL communicators of a mesh that are alive, for those who look after all of them.
#pragma once

#include <algorithm>
#include <mutex>
#include <vector>

namespace cartan::comm {

class NcclCommunicator;

/// Thread-safe.
class NcclRegistry {
 public:
  void add(NcclCommunicator* communicator) {
    const std::lock_guard lock(mutex_);
    alive_.push_back(communicator);
  }
  void remove(NcclCommunicator* communicator) {
    const std::lock_guard lock(mutex_);
    alive_.erase(std::remove(alive_.begin(), alive_.end(), communicator), alive_.end());
  }
  /// None of them goes away meanwhile.
  template <class Visit>
  void for_each(Visit&& visit) {
    const std::lock_guard lock(mutex_);
    for (NcclCommunicator* communicator : alive_) visit(*communicator);
  }

 private:
  std::mutex mutex_;
  std::vector<NcclCommunicator*> alive_;
};

}  // namespace cartan::comm
