// Results of NCCL and of the CUDA runtime as exceptions.
#pragma once

#include <nccl.h>

#include <string>
#include <string_view>

namespace cartan::comm {

/// What a non-blocking call returns that has not failed.
inline bool is_fine(ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; }

/// Returns if `result` is ncclSuccess. Throws PeerError where another rank is gone or unreachable,
/// InternalError where ranks or arguments do not fit together, else EnvironmentError. `what` names the call:
/// "all_gather #12 on tp[pp=0,dp=1,cp=0], rank 1 of 4".
void check(ncclResult_t result, std::string_view what);
/// Throws EnvironmentError that names the call.
void check(cudaError_t result, const char* call);

}  // namespace cartan::comm
