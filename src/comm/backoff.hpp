// How a thread waits for another process: it spins for some microseconds, then yields its CPU, then sleeps,
// so that ranks which share a CPU, and the computing threads of the own rank, go on meanwhile.
#pragma once

#include <sched.h>

#include <chrono>
#include <thread>

namespace cartan::comm {

class Backoff {
 public:
  /// spin = false where ranks share CPUs: then spinning only delays the one that is waited for.
  explicit Backoff(bool spin) : rounds_(spin ? 0 : kSpins) {}

  /// Whether it slept.
  bool pause() {
    if (rounds_ < kSpins) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    } else if (rounds_ < kSpins + kYields) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      return true;
    }
    ++rounds_;
    return false;
  }

 private:
  static constexpr int kSpins = 1000;  // some 10 to 40 us
  static constexpr int kYields =
      50;  // few: where CPUs are short each one costs a time slice, while a sleeper is woken first

  int rounds_;
};

}  // namespace cartan::comm
