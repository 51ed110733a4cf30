// Whether this machine is fit for a run, before a queue is waited in: MPI, CPUs, GPU and NCCL, the file
// system of the run directory, from the side of all ranks.
#pragma once

#include <string>
#include <vector>

#include "cartan/comm/session.hpp"
#include "cartan/train/config.hpp"

namespace cartan::tools {

enum class Health {
  good,
  notable,  ///< it works, not as well as it could
  bad       ///< a run with this configuration would fail
};
std::string name_of(Health health);

struct Finding {
  std::string subject;
  Health health = Health::good;
  std::string text;
  std::string advice{};  ///< what to do, where something is to be done
};

/// In the order in which one rests on the other. Tries out what it tells about: a sum over all ranks, the
/// device of run.device, NCCL between the GPUs, a file in run.dir that is gone afterwards. Collective; all
/// ranks return the same. Throws only where the ranks cannot talk to each other.
std::vector<Finding> examine(const train::Config& config, comm::Session& session);

}  // namespace cartan::tools
