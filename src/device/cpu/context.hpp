// What the CPU operations share: the threads of this rank and a fixed piece of scratch memory for each.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "cartan/core/types.hpp"

namespace cartan::device::cpu {

/// The threads of one rank. Plain std::threads (a sanitizer understands them); the caller is thread 0.
/// Waiting threads spin briefly, then sleep, so that oversubscribed ranks do not starve each other. Tasks are
/// handed out dynamically: which thread runs a task must not matter to its result. Inside a task oneDNN runs
/// on one thread.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();
  int size() const;
  /// Runs task(i, thread) for i = 0 ... tasks-1 and returns when all are done. An exception of a task is
  /// rethrown here. Not reentrant; called from one thread.
  void run(Index tasks, const std::function<void(Index task, int thread)>& task);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Scratch bytes of each thread: tiles, packed blocks, partial sums. Fixed, so that it is known before the
/// run.
inline constexpr std::size_t kScratchBytes = std::size_t{6} << 20;

struct Context {
  ThreadPool& pool;
  std::byte* scratch_base;  ///< pool.size() * kScratchBytes, 64-byte aligned
  template <class T>
  T* scratch(int thread) const {
    return reinterpret_cast<T*>(scratch_base + static_cast<std::size_t>(thread) * kScratchBytes);
  }
};

}  // namespace cartan::device::cpu
