#include "nccl_checks.hpp"

#include "nccl_types.hpp"
#include "runtime.h"

namespace emu::nccl {

ncclResult_t fault_in(const char* call, const Shared& communicator, ncclDataType_t type) {
  if (communicator->setup) return misuse(std::string(call) + " on a communicator that is still in progress");
  if (communicator->is_finalized) return misuse(std::string(call) + " on a finalized communicator");
  if (communicator->error != ncclSuccess) return communicator->error;
  if (size_of(type) == 0)
    return misuse(std::string(call) + ": type " + std::to_string(type) + " is not emulated");
  return ncclSuccess;
}

ncclResult_t fault_in_range(const char* call, const void* data, std::size_t bytes) {
  if (bytes == 0 || is_visible_to_device(data, bytes)) return ncclSuccess;
  return misuse(std::string(call) + " of " + std::to_string(bytes) +
                    " bytes that are not in one allocation of the device",
                ncclInvalidArgument);
}

void break_off(Communicator& communicator, const std::string& text) {
  misuse("communicator " + communicator.name + ", rank " + std::to_string(communicator.rank) + ": " + text);
  if (communicator.error == ncclSuccess) communicator.error = ncclInvalidUsage;
}

bool is_cut_off(Communicator& communicator) {
  if (is_to_fail("ncclAsync")) communicator.error = ncclRemoteError;
  return communicator.error == ncclRemoteError;
}

bool is_reachable(Communicator& communicator, int rank) {
  if (communicator.heap_of(rank) != nullptr) return true;
  misuse("communicator " + communicator.name + ": the process of rank " + std::to_string(rank) + " is gone");
  communicator.error = ncclRemoteError;
  return false;
}

}  // namespace emu::nccl
