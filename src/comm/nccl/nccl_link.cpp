#include "comm/nccl/nccl_link.hpp"

#include <chrono>
#include <exception>
#include <thread>

#include "cartan/core/clock.hpp"
#include "cartan/core/log.hpp"
#include "comm/nccl/check.hpp"

namespace cartan::comm {
namespace {

constexpr double kFarewell_s = 30;  ///< for the peers to end what they share

void pause() { std::this_thread::sleep_for(std::chrono::microseconds(50)); }

}  // namespace

NcclLink::NcclLink(MpiGroup& group, const LinkOptions& options)
    : where_(fmt::format("{}, rank {} of {}", group.name(), group.rank(), group.size())),
      failure_(options.failure) {
  ncclUniqueId id{};
  all_or_none(group, fmt::format("making an NCCL id for {}", group.name()), [&] {
    if (group.rank() == 0) comm::check(ncclGetUniqueId(&id), "ncclGetUniqueId for " + where_);
  });
  group.broadcast_host(std::as_writable_bytes(std::span(&id, 1)), 0);
  // Everyone has the id before anyone waits inside of NCCL, where MPI makes no progress.
  group.barrier();
  try {
    all_or_none(group, fmt::format("connecting the GPUs of {}", group.name()),
                [&] { connect(id, group, options); });
  } catch (...) {
    abort();
    throw;
  }
}

void NcclLink::connect(const ncclUniqueId& id, MpiGroup& group, const LinkOptions& options) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.commName = group.name().c_str();
  if (options.most_blocks > 0) config.maxCTAs = options.most_blocks;
  const std::string what = "connecting the GPUs of " + where_;
  const auto begin = Clock::now();
  ncclResult_t now = ncclCommInitRankConfig(&handle_, group.size(), id, group.rank(), &config);
  while (now == ncclInProgress) {
    failure_->check();
    // NCCL waits for a rank that gave up.
    if (const int peer = group.failed_peer(); peer >= 0) throw PeerError("{}: rank {} failed", what, peer);
    if (seconds_since(begin) > options.connect_timeout_s)
      throw EnvironmentError(
          "{}: not all ranks were there within {} s; NCCL_DEBUG=INFO tells who is missing, and "
          "NCCL_SOCKET_IFNAME chooses the network",
          what, options.connect_timeout_s);
    pause();
    now = state();
  }
  if (now != ncclSuccess) group.tell_failure();
  comm::check(now, what);
}

NcclLink::~NcclLink() {
  if (handle_ == nullptr) return;
  if (std::uncaught_exceptions() > 0) {
    abort();
    return;
  }
  ncclResult_t now = ncclCommFinalize(handle_);
  const auto begin = Clock::now();
  while (now == ncclInProgress && seconds_since(begin) < kFarewell_s) {
    pause();
    now = state();
  }
  if (now == ncclSuccess) {
    ncclCommDestroy(handle_);
  } else {
    log::warning("comm", "{}: NCCL does not end in good order ({})", where_, ncclGetErrorString(now));
    abort();
  }
}

void* NcclLink::register_memory(void* data, std::size_t size_bytes) {
  const std::lock_guard lock(mutex_);
  void* registration = nullptr;
  if (handle_ == nullptr || ncclCommRegister(handle_, data, size_bytes, &registration) != ncclSuccess)
    return nullptr;
  return registration;
}

void NcclLink::deregister(void* registration) noexcept {
  const std::lock_guard lock(mutex_);
  if (handle_ != nullptr && registration != nullptr) ncclCommDeregister(handle_, registration);
}

ncclResult_t NcclLink::state() {
  const std::lock_guard lock(mutex_);
  if (handle_ == nullptr) return ncclSuccess;
  ncclResult_t found = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(handle_, &found);
  return asked == ncclSuccess ? found : asked;
}

void NcclLink::abort() noexcept {
  const std::lock_guard lock(mutex_);
  is_aborted_ = true;
  if (handle_ != nullptr) ncclCommAbort(std::exchange(handle_, nullptr));
}

void NcclLink::check(ncclResult_t result, const CallName& call) const {
  if (result != ncclSuccess)
    comm::check(result, fmt::format("{} #{} on {}", call.verb, call.sequence, where_));
}

void NcclLink::require_open(const CallName& call) const {
  failure_->check();
  if (is_aborted_)
    throw PeerError("{} #{} on {}: the group was given up after a failure", call.verb, call.sequence, where_);
}

void NcclLink::settle(const CallName& call) {
  ncclResult_t now = ncclInProgress;
  while ((now = state()) == ncclInProgress) pause();
  {
    const std::lock_guard lock(mutex_);
    require_open(call);
  }
  check(now, call);
}

}  // namespace cartan::comm
