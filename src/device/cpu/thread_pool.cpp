// Tasks are claimed by decrementing one counter. A claim that succeeds belongs to a job that cannot end
// before the claimed task does, so a worker that wakes late finds either nothing or a whole, living job.
#include <dlfcn.h>

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "cartan/core/error.hpp"
#include "device/cpu/context.hpp"

namespace cartan::device::cpu {
namespace {

// Some ten microseconds: the usual gap between two operations of a step.
constexpr int kSpins = 1000;

void pause_briefly() { __builtin_ia32_pause(); }

/// oneDNN computes with whatever OpenMP library it was built for; here every thread of the pool calls it for
/// itself.
void make_this_thread_sequential() {
  thread_local bool done = false;
  if (done) return;
  done = true;
  if (void* const symbol = ::dlsym(RTLD_DEFAULT, "omp_set_num_threads"))
    reinterpret_cast<void (*)(int)>(symbol)(1);
}

}  // namespace

struct ThreadPool::State {
  std::atomic<Index> remaining{0};  // tasks not yet claimed
  std::atomic<Index> finished{0};
  Index tasks = 0;
  const std::function<void(Index, int)>* task = nullptr;
  std::exception_ptr failure;  // guarded by mutex

  std::mutex mutex;
  std::condition_variable work_came, work_ended;
  std::atomic<int> sleepers{0};
  std::atomic<bool> caller_sleeps{false};
  std::atomic<bool> stopping{false};
  std::vector<std::thread> threads;

  /// Claims a task; false if there is none.
  bool claim(Index& left) {
    left = remaining.load(std::memory_order_acquire);
    while (left > 0) {
      if (remaining.compare_exchange_weak(left, left - 1, std::memory_order_acq_rel)) return true;
    }
    return false;
  }

  void work(int thread) {
    for (Index left = 0; claim(left);) {
      const Index all = tasks;
      try {
        (*task)(all - left, thread);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
      }
      if (finished.fetch_add(1) + 1 == all && caller_sleeps.load()) {
        const std::lock_guard lock(mutex);
        work_ended.notify_one();
      }
    }
  }

  void worker_loop(int thread) {
    make_this_thread_sequential();
    for (;;) {
      int spins = 0;
      while (remaining.load(std::memory_order_relaxed) == 0 && !stopping.load() && spins++ < kSpins) {
        pause_briefly();
      }
      if (remaining.load(std::memory_order_relaxed) == 0) {
        std::unique_lock lock(mutex);
        ++sleepers;
        work_came.wait(lock, [&] { return stopping.load() || remaining.load() > 0; });
        --sleepers;
      }
      if (stopping.load()) return;
      work(thread);
    }
  }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  CARTAN_ASSERT(threads >= 1);
  for (int thread = 1; thread < threads; ++thread) {
    state_->threads.emplace_back([state = state_.get(), thread] { state->worker_loop(thread); });
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->work_came.notify_all();
  for (std::thread& thread : state_->threads) thread.join();
}

int ThreadPool::size() const { return static_cast<int>(state_->threads.size()) + 1; }

void ThreadPool::run(Index tasks, const std::function<void(Index task, int thread)>& task) {
  make_this_thread_sequential();
  if (size() == 1 || tasks <= 1) {
    for (Index i = 0; i < tasks; ++i) task(i, 0);
    return;
  }
  State& s = *state_;
  s.tasks = tasks;
  s.task = &task;
  s.finished = 0;
  s.remaining = tasks;
  if (s.sleepers.load() > 0) {
    const std::lock_guard lock(s.mutex);
    s.work_came.notify_all();
  }
  s.work(0);
  for (int spins = 0; s.finished.load() < tasks && spins < kSpins; ++spins) pause_briefly();
  if (s.finished.load() < tasks) {
    std::unique_lock lock(s.mutex);
    s.caller_sleeps = true;
    s.work_ended.wait(lock, [&] { return s.finished.load() == tasks; });
    s.caller_sleeps = false;
  }
  const std::lock_guard lock(s.mutex);
  if (s.failure) std::rethrow_exception(std::exchange(s.failure, nullptr));
}

}  // namespace cartan::device::cpu
