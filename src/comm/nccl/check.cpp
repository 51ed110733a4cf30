#include "comm/nccl/check.hpp"

#include "cartan/comm/nccl_version.hpp"
#include "cartan/core/error.hpp"

namespace cartan::comm {

void check(ncclResult_t result, std::string_view what) {
  if (result == ncclSuccess) return;
  const char* const detail = ncclGetLastError(nullptr);
  const bool has_detail = detail != nullptr && *detail != '\0';
  const std::string message =
      fmt::format("{} failed: NCCL says \"{}\"{}", what, ncclGetErrorString(result),
                  has_detail ? fmt::format(" ({}); NCCL_DEBUG=INFO tells more", detail)
                             : std::string("; NCCL_DEBUG=INFO tells more"));
  switch (result) {
    case ncclRemoteError:
      throw PeerError("{}", message);
    case ncclInvalidUsage:
    case ncclInvalidArgument:
      throw InternalError("{}", message);
    default:
      throw EnvironmentError("{}", message);
  }
}

void check(cudaError_t result, const char* call) {
  if (result != cudaSuccess)
    throw EnvironmentError("cuda: {} failed: {} ({})", call, cudaGetErrorString(result),
                           cudaGetErrorName(result));
}

std::string nccl_version() {
  int version = 0;
  check(ncclGetVersion(&version), "ncclGetVersion");
  return fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

}  // namespace cartan::comm
