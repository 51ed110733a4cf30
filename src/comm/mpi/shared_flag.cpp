#include "comm/mpi/shared_flag.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <ctime>

#include "comm/backoff.hpp"

namespace cartan::comm {
namespace {

constexpr timespec kPatience{0, 1'000'000};  // a millisecond

}  // namespace

// Either the advancing side sees the sleeper, or the sleeper sees the new value: both write first and read
// then, in one total order.
void SharedFlag::advance(std::uint32_t value) {
  value_.store(value);
  if (sleepers_.load() > 0) ::syscall(SYS_futex, &value_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void SharedFlag::wait(std::uint32_t value, bool spin, const std::function<void()>& meanwhile) {
  for (int i = 0; spin && i < kSpins; ++i) {
    if (reached(value)) return;
    pause_briefly();
  }
  while (!reached(value)) {
    ++sleepers_;
    const std::uint32_t seen = value_.load();
    long failed = 0;
    // Returns at once if the value is another one by now; on signals too, hence the loop.
    if (static_cast<std::int32_t>(seen - value) < 0)
      failed = ::syscall(SYS_futex, &value_, FUTEX_WAIT, seen, &kPatience, nullptr, 0);
    const bool is_long = failed != 0 && errno == ETIMEDOUT;
    --sleepers_;
    if (is_long) meanwhile();
  }
}

bool SharedFlag::reached(std::uint32_t value) const {
  return static_cast<std::int32_t>(value_.load(std::memory_order_acquire) - value) >=
         0;  // counts wrap around
}

}  // namespace cartan::comm
