// A training run from start or resume to its end: data, steps, evaluation, checkpoints, log, signals.
#pragma once

#include <string>

#include "cartan/comm/mesh_groups.hpp"
#include "cartan/core/error.hpp"
#include "cartan/train/config.hpp"

namespace cartan::train {

/// Runs `config` (resolved for the session's ranks) in its run directory; resumes from the newest good
/// checkpoint there. `config_ini` is what config.ini and the checkpoints record. Returns done, or
/// stopped_early after a save that was asked for by a signal or a file STOP. Throws Error; what a checkpoint
/// committed stays readable. Collective over all ranks.
ExitCode run_training(const Config& config, const std::string& config_ini, comm::Session& session,
                      comm::Mesh& mesh, device::Device& device);

}  // namespace cartan::train
