#include "cartan/train/run_device.hpp"

#include <cstdlib>
#include <filesystem>
#include <string>

#include "cartan/core/error.hpp"

namespace cartan::train {
namespace {

/// Where files of offload go; made where it is run.dir. Node-local disks are announced by TMPDIR.
std::string offload_directory(const Config& config) {
  if (config.zero.offload == "none" && config.recompute.policy != "offload") return {};
  if (!config.zero.offload_dir.empty()) return config.zero.offload_dir;
  if (const char* local = std::getenv("TMPDIR"); local != nullptr && *local != '\0') return local;
  std::error_code error;
  std::filesystem::create_directories(config.run.dir, error);
  if (error) throw IoError("cannot create run.dir {}: {}", config.run.dir, error.message());
  return config.run.dir;
}

}  // namespace

std::unique_ptr<device::Device> make_run_device(const Config& config, const comm::Session& session) {
  device::DeviceOptions options;
  options.threads = config.run.threads > 0 ? config.run.threads : session.threads_of_rank();
  options.offload_dir = offload_directory(config);
  options.local_rank = session.node_rank();
  options.local_ranks = session.ranks_on_node();
  options.graphs = config.run.graphs;
  return device::make_device(device::device_kind_from_name(config.run.device), options);
}

bool overlaps(const comm::Session& session, const device::Device& device) {
  // NCCL is not MPI: its calls come from one thread and run beside computing all the same.
  const bool can = device.kind() == device::DeviceKind::cuda || session.thread_multiple();
  return can && session.world_size() > 1;
}

}  // namespace cartan::train
