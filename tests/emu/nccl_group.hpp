// Groups: the calls between ncclGroupStart and ncclGroupEnd of one communicator and one stream are one
// operation there.
#pragma once

#include <nccl.h>

#include <functional>
#include <string>

#include "executor.hpp"
#include "nccl_comm.hpp"

namespace emu::nccl {

/// One call on the way to its stream.
struct Task {
  Shared communicator;
  cudaStream_t stream;
  std::string name;
  /// Takes the call's number on its communicator, and gives the work that then runs.
  std::function<Work()> start;
};

bool is_in_group();

/// The task is enqueued now, or with the group.
ncclResult_t add(Task task);
/// A call that failed makes its group fail.
ncclResult_t fail(ncclResult_t result);

}  // namespace emu::nccl
