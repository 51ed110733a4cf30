#include "comm/nccl/watchdog.hpp"

#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "cartan/comm/session.hpp"
#include "cartan/core/error.hpp"
#include "comm/nccl/check.hpp"

namespace cartan::comm {

Watchdog::Watchdog(Duties duties, std::shared_ptr<FirstFailure> failure, const WatchdogOptions& options)
    : duties_(std::move(duties)),
      failure_(std::move(failure)),
      options_(options),
      thread_([this] { run(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  end_.notify_all();
  thread_.join();
}

bool Watchdog::is_ended_within(double seconds) {
  std::unique_lock lock(mutex_);
  return end_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return ends_; });
}

void Watchdog::run() {
  std::exception_ptr found;
  try {
    check(cudaSetDevice(options_.gpu), "cudaSetDevice");
    while (!is_ended_within(options_.interval_s)) duties_.look();
    return;
  } catch (...) {
    found = std::current_exception();
  }
  failure_->note(found);  // before any wait returns
  duties_.abandon();
  if (!is_ended_within(options_.grace_s)) duties_.give_up(found);
}

void end_process(const std::exception_ptr& failure) {
  // MPI itself may be what hangs: then the alarm ends the process.
  constexpr unsigned kSecondsForMpi = 10;
  alarm(kSecondsForMpi);
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    std::fprintf(stderr, "cartan: %s\n", error.what());
    Session::abort(static_cast<int>(error.code()));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cartan: defect in cartan: %s; please report it\n", error.what());
  }
  Session::abort(static_cast<int>(ExitCode::internal));
}

}  // namespace cartan::comm
