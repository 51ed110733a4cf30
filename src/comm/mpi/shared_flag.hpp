// A counter in shared memory that one process advances and others wait for. Who waits long sleeps in the
// kernel (futex) and is woken at once: on a shared CPU that costs neither the time slices that yielding gives
// away nor the delay of sleeping for a guessed time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace cartan::comm {

class SharedFlag {
 public:
  /// Makes everything that this process wrote before visible to those who see `value`.
  void advance(std::uint32_t value);
  /// Returns when the flag has reached `value`; it may be a few advances ahead. With `spin`, first looks
  /// again and again for some ten microseconds, which pays where every rank has a CPU of its own. Calls
  /// `meanwhile` about every millisecond that the wait lasts.
  void wait(std::uint32_t value, bool spin, const std::function<void()>& meanwhile);

 private:
  bool reached(std::uint32_t value) const;

  static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "flags are shared between processes");
  std::atomic<std::uint32_t> value_{0};
  std::atomic<std::uint32_t> sleepers_{0};
};

}  // namespace cartan::comm
