// A communicator in one process. Its handle may go while operations of it are still enqueued: they keep the
// state.
#pragma once

#include <nccl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "nccl_segment.hpp"

namespace emu::nccl {

struct Communicator {
  Segment* segment = nullptr;
  FileAddress own_segment{0, -1};  ///< where this process made it
  int rank = 0, size = 1;
  std::string name;
  bool is_blocking = true;

  ncclResult_t error = ncclSuccess;  ///< what ncclCommGetAsyncError says
  bool is_aborted = false, is_finalized = false;
  int pending = 0;  ///< operations that are enqueued and have not ended

  /// Groups that were enqueued, and that ended.
  std::uint64_t turns = 0, turns_ended = 0;
  /// Of collectives and of messages for and from each rank: how many were enqueued, and how many collectives
  /// ended.
  std::uint64_t issued = 0, completed = 0, splits = 0;
  std::vector<std::uint64_t> sent, received;

  /// What still has to be done by all ranks together before the communicator, or a split of it, is there:
  /// called until it says something else than ncclInProgress.
  std::function<ncclResult_t()> setup;
  /// The first group of a communicator that does not block is enqueued only when the caller has asked for the
  /// state often enough; a caller that goes on before that has its work in the wrong order.
  std::vector<std::function<void()>> deferred;
  bool has_started = false;
  int polls = 0;

  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator();

  /// Where a rank's device memory begins, in this process.
  const unsigned char* heap_of(int of_rank);

 private:
  std::vector<unsigned char*> peer_heaps_;
};

using Shared = std::shared_ptr<Communicator>;

/// Null, with a finding, for a handle that is none.
Shared find(const char* call, ncclComm_t handle);

/// Reports the misuse, for ncclGetLastError too, and gives the result back.
ncclResult_t misuse(const std::string& text, ncclResult_t result = ncclInvalidUsage);

/// What a call has to return before it does anything: EMU_FAIL's turn, an error of the device.
ncclResult_t begin_call(const char* call);

}  // namespace emu::nccl

struct ncclComm {
  emu::nccl::Shared state;
};
