// How a thread waits for another process where it has to ask again and again: it spins for some microseconds,
// then sleeps, so that ranks which share a CPU, and the computing threads of the own rank, go on meanwhile.
// It does not yield: where CPUs are short each yield gives away a time slice of milliseconds.
#pragma once

#include <chrono>
#include <thread>

namespace cartan::comm {

inline constexpr int kSpins = 1000;  // some 10 to 40 us

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

class Backoff {
 public:
  /// spin = false where ranks share CPUs: then spinning only delays the one that is waited for.
  explicit Backoff(bool spin) : rounds_(spin ? 0 : kSpins) {}

  void pause() {
    if (rounds_ < kSpins) {
      pause_briefly();
      ++rounds_;
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

 private:
  int rounds_;
};

}  // namespace cartan::comm
