// What collectives and messages have in common: checks before a call is enqueued, and what breaks a
// communicator.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "executor.hpp"
#include "nccl_comm.hpp"

namespace emu::nccl {

/// What is wrong before anything is enqueued; ncclSuccess if nothing is.
ncclResult_t fault_in(const char* call, const Shared& communicator, ncclDataType_t type);
ncclResult_t fault_in_range(const char* call, const void* data, std::size_t bytes);

/// An error that others see too; nothing of the communicator works any more.
void break_off(Communicator& communicator, const std::string& text);

/// Whether EMU_FAIL breaks a connection now: the error shows in ncclCommGetAsyncError, and nothing moves any
/// more.
bool is_cut_off(Communicator& communicator);

/// Whether a rank's memory can be read; if its process is gone, the communicator breaks.
bool is_reachable(Communicator& communicator, int rank);

/// The start of a task whose state lives as long as its work.
template <class State, class... Arguments>
std::function<Work()> starting(const Arguments&... arguments) {
  return [=]() -> Work {
    const auto state = std::make_shared<State>(arguments...);
    return [state] { return state->step(); };
  };
}

}  // namespace emu::nccl
