// The device of a run.
#pragma once

#include <memory>

#include "cartan/comm/session.hpp"
#include "cartan/device/device.hpp"
#include "cartan/train/config.hpp"

namespace cartan::train {

/// What run.device says: for `cuda` the GPU of this rank, for `cpu` as many threads as run.threads says (0:
/// the rank's share of the node). Throws EnvironmentError where there is none.
std::unique_ptr<device::Device> make_run_device(const Config& config, const comm::Session& session);

/// Whether communication can run beside computing.
bool overlaps(const comm::Session& session, const device::Device& device);

}  // namespace cartan::train
