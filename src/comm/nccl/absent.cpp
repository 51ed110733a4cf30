// In place of NCCL's communicators, in builds without CUDA.
#include "cartan/comm/nccl_version.hpp"
#include "cartan/core/error.hpp"
#include "comm/nccl/nccl_groups.hpp"

namespace cartan::comm {

std::unique_ptr<NcclGroups> make_nccl_groups(const NcclOptions&) {
  throw EnvironmentError(
      "a mesh on GPUs: this cartan was built without CUDA (cmake says why: its CUDA line); use run.device = "
      "cpu");
}

std::string nccl_version() { return {}; }

}  // namespace cartan::comm
