#include "nccl_comm.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <set>
#include <utility>

#include "nccl_group.hpp"
#include "nccl_setup.hpp"
#include "runtime.h"

namespace emu::nccl {
namespace {

std::set<ncclComm_t>& handles = *new std::set<ncclComm_t>;
std::string& last_error = *new std::string;  // as NCCL: of any communicator

int next_name = 0;

ncclComm_t make_handle(Shared state) {
  ncclComm_t const handle = new ncclComm{std::move(state)};
  handles.insert(handle);
  return handle;
}

void drop_handle(ncclComm_t handle) {
  handles.erase(handle);
  delete handle;
}

FileAddress address_in(const ncclUniqueId& id) {
  FileAddress address;
  std::memcpy(&address, &id, sizeof address);
  return address;
}

Shared make_state(const ncclConfig_t* wanted) {
  init_heap();
  need_progress();
  auto state = std::make_shared<Communicator>();
  state->name = "#" + std::to_string(++next_name);
  if (wanted == nullptr) return state;
  state->is_blocking = wanted->blocking != 0;
  if (wanted->commName != nullptr) state->name = wanted->commName;
  return state;
}

/// Until no operation of the communicator is under way.
void wait_for_operations(Communicator& communicator) {
  wait_until([&] { return communicator.pending == 0; }, nullptr);
}

}  // namespace

Communicator::~Communicator() {
  for (unsigned char* const peer : peer_heaps_)
    if (peer != nullptr) munmap(peer, static_cast<std::size_t>(heap.hi - heap.lo));
  if (segment != nullptr) unmap_segment(segment);
  if (own_segment.fd >= 0) close(own_segment.fd);
}

const unsigned char* Communicator::heap_of(int of_rank) {
  if (of_rank == rank) return heap.lo;
  peer_heaps_.resize(static_cast<std::size_t>(size));
  unsigned char*& mapped = peer_heaps_[static_cast<std::size_t>(of_rank)];
  if (mapped == nullptr) {
    const Member& member = segment->members[of_rank];
    mapped = map_heap({member.pid.load(), member.heap_fd});
  }
  return mapped;
}

Shared find(const char* call, ncclComm_t handle) {
  const std::lock_guard lock(big_lock());
  if (handles.count(handle) > 0) return handle->state;
  misuse(std::string(call) + " of a communicator that does not exist, or no longer", ncclInvalidArgument);
  return nullptr;
}

ncclResult_t misuse(const std::string& text, ncclResult_t result) {
  last_error = text;
  report(text);
  return result;
}

ncclResult_t begin_call(const char* call) {
  if (is_to_fail(call)) {
    last_error = std::string(call) + " was told to fail";
    return ncclSystemError;
  }
  const std::lock_guard lock(big_lock());
  return !config.has_driver || config.gpus == 0 || sticky_error() != cudaSuccess ? ncclUnhandledCudaError
                                                                                 : ncclSuccess;
}

}  // namespace emu::nccl

using namespace emu;
using emu::nccl::begin_call, emu::nccl::misuse, emu::nccl::Shared;

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (const ncclResult_t early = begin_call("ncclGetUniqueId"); early != ncclSuccess) return early;
  const nccl::FileAddress address = nccl::make_segment();
  if (address.fd < 0) return ncclSystemError;
  *id = {};
  std::memcpy(id, &address, sizeof address);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* handle, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* wanted) {
  constexpr const char* kCall = "ncclCommInitRankConfig";
  if (const ncclResult_t early = begin_call(kCall); early != ncclSuccess) return early;
  if (nccl::is_in_group())
    return nccl::fail(misuse("a communicator that is made in a group is not emulated"));
  if (size < 1 || size > nccl::kMaxRanks || rank < 0 || rank >= size)
    return misuse(std::string(kCall) + ": rank " + std::to_string(rank) + " of " + std::to_string(size),
                  ncclInvalidArgument);
  Shared state;
  {
    const std::lock_guard lock(big_lock());
    state = nccl::make_state(wanted);
    state->rank = rank;
    state->size = size;
    state->sent.assign(static_cast<std::size_t>(size), 0);
    state->received.assign(static_cast<std::size_t>(size), 0);
    if (is_to_fail("ncclLost"))
      state->setup = [] { return ncclInProgress; };
    else
      state->setup = [raw = state.get(), id] { return nccl::join(*raw, nccl::address_in(id)); };
    *handle = nccl::make_handle(state);
  }
  const ncclResult_t result = nccl::set_up(kCall, *state);
  if (result == ncclSuccess || result == ncclInProgress) return result;
  const std::lock_guard lock(big_lock());
  nccl::drop_handle(std::exchange(*handle, nullptr));
  return result;
}

ncclResult_t ncclCommInitRank(ncclComm_t* handle, int size, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(handle, size, id, rank, nullptr);
}

ncclResult_t ncclCommSplit(ncclComm_t parent_handle, int color, int key, ncclComm_t* handle,
                           ncclConfig_t* wanted) {
  constexpr const char* kCall = "ncclCommSplit";
  if (const ncclResult_t early = begin_call(kCall); early != ncclSuccess) return early;
  *handle = nullptr;
  const Shared parent = nccl::find(kCall, parent_handle);
  if (parent == nullptr) return ncclInvalidArgument;
  if (color < 0 && color != NCCL_SPLIT_NOCOLOR) return misuse(std::string(kCall) + ": a negative colour");
  Shared child;
  {
    const std::lock_guard lock(big_lock());
    if (parent->setup) return misuse(std::string(kCall) + " of a communicator that is still in progress");
    if (parent->error != ncclSuccess) return parent->error;
    const std::uint64_t number = nccl::announce_split(*parent, color, key);
    if (color != NCCL_SPLIT_NOCOLOR) {
      child = nccl::make_state(wanted);
      if (wanted == nullptr) child->is_blocking = parent->is_blocking;
      child->setup = [parent, raw = child.get(), number, color] {
        return nccl::advance_split(*parent, raw, number, color);
      };
      *handle = nccl::make_handle(child);
    }
    // The parent is busy until all ranks have called: the next split uses the same slots.
    parent->setup = [raw = parent.get(), child, number, color] {
      if (child != nullptr)
        return child->setup && !child->is_aborted ? nccl::advance_setup(*child) : ncclSuccess;
      return nccl::advance_split(*raw, nullptr, number, color);
    };
  }
  return nccl::set_up(kCall, *parent);
}

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  constexpr const char* kCall = "ncclCommFinalize";
  if (const ncclResult_t early = begin_call(kCall); early != ncclSuccess) return early;
  const Shared state = nccl::find(kCall, handle);
  if (state == nullptr) return ncclInvalidArgument;
  if (std::exchange(state->is_finalized, true)) return misuse("ncclCommFinalize a second time");
  if (!state->is_blocking) return ncclInProgress;
  nccl::wait_for_operations(*state);
  return state->error;
}

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  constexpr const char* kCall = "ncclCommDestroy";
  const Shared state = nccl::find(kCall, handle);
  if (state == nullptr) return ncclInvalidArgument;
  if (state->setup) return misuse("ncclCommDestroy of a communicator that is still in progress: abort it");
  if (!state->deferred.empty())
    misuse(
        "ncclCommDestroy while the first operations are still in progress: ask ncclCommGetAsyncError first");
  nccl::wait_for_operations(*state);
  const std::lock_guard lock(big_lock());
  nccl::drop_handle(handle);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t handle) {
  const Shared state = nccl::find("ncclCommAbort", handle);
  if (state == nullptr) return ncclInvalidArgument;
  const std::lock_guard lock(big_lock());
  // Its operations end when their turn comes.
  state->is_aborted = true;
  state->deferred.clear();
  nccl::drop_handle(handle);
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* error) {
  constexpr const char* kCall = "ncclCommGetAsyncError";
  if (is_to_fail(kCall)) return ncclSystemError;
  const Shared state = nccl::find(kCall, handle);
  if (state == nullptr) return ncclInvalidArgument;
  const std::lock_guard lock(big_lock());
  *error = nccl::advance_setup(*state);
  if (*error != ncclSuccess) return ncclSuccess;
  constexpr int kPollsUntilStarted = 2;
  if (!state->deferred.empty() && ++state->polls < kPollsUntilStarted) {
    *error = ncclInProgress;
    return ncclSuccess;
  }
  for (const auto& start : std::exchange(state->deferred, {})) start();
  if (state->is_finalized && state->pending > 0) {
    poke(nullptr);
    *error = ncclInProgress;
  }
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t handle, int* count) {
  const Shared state = nccl::find("ncclCommCount", handle);
  if (state == nullptr) return ncclInvalidArgument;
  *count = state->size;
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t handle, int* rank) {
  const Shared state = nccl::find("ncclCommUserRank", handle);
  if (state == nullptr) return ncclInvalidArgument;
  *rank = state->rank;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "operation in progress";
    default:
      return "unknown result code";
  }
}

const char* ncclGetLastError(ncclComm_t) { return nccl::last_error.c_str(); }
}
