#include "cartan/tools/doctor.hpp"

#include <unistd.h>

#include <map>
#include <memory>

#include "cartan/comm/mesh_groups.hpp"
#include "cartan/comm/nccl_version.hpp"
#include "cartan/core/error.hpp"
#include "cartan/core/narrow.hpp"
#include "cartan/device/cuda_info.hpp"
#include "cartan/train/run_device.hpp"
#include "tools/file_system.hpp"
#include "tools/rank_texts.hpp"

namespace cartan::tools {
namespace {

Finding about_mpi(comm::Communicator& world, const comm::Session& session) {
  std::map<std::string, int> ranks_of_host;
  for (const std::string& host : gather(world, session.host())) ++ranks_of_host[host];
  Texts hosts;
  for (const auto& [host, ranks] : ranks_of_host) hosts.push_back(fmt::format("{} on {}", ranks, host));
  constexpr std::size_t kMost = 8;
  if (hosts.size() > kMost) {
    const std::size_t more = hosts.size() - kMost;
    hosts.resize(kMost);
    hosts.push_back(fmt::format("and {} hosts more", more));
  }
  std::int64_t sum = world.rank();
  world.sum({&sum, 1});
  const std::int64_t expected = std::int64_t{world.size()} * (world.size() - 1) / 2;
  Finding finding{
      "MPI", Health::good,
      fmt::format("{} rank{}: {}", world.size(), world.size() == 1 ? "" : "s", fmt::join(hosts, ", "))};
  if (sum != expected) {
    finding.health = Health::bad;
    finding.text += fmt::format("; the sum of their numbers is {}, expected {}", sum, expected);
    finding.advice = "messages are damaged: try another MPI, or another network of it";
  } else if (!session.thread_multiple()) {
    finding.health = Health::notable;
    finding.text += "; only one thread may call MPI at a time";
    finding.advice =
        "use an MPI that gives MPI_THREAD_MULTIPLE: without it communication does not run beside computing "
        "on CPUs, and there are no pipelines";
  }
  return finding;
}

Finding about_cpus(comm::Communicator& world, const train::Config& config, const comm::Session& session) {
  const int threads = config.run.threads > 0 ? config.run.threads : session.threads_of_rank();
  const long cpus = sysconf(_SC_NPROCESSORS_ONLN);
  const Texts all = gather(world, fmt::format("{} of the {} CPUs of its node for each rank", threads, cpus));
  Finding finding{"CPUs", Health::good, summary(all)};
  const bool is_crowded = std::int64_t{threads} * session.ranks_on_node() > cpus;
  if (world.max(is_crowded ? 1 : 0) > 0) {
    finding.health = Health::notable;
    finding.advice =
        "there are more threads than CPUs: start fewer ranks a node, or set run.threads; with mpirun use "
        "--oversubscribe --mca mpi_yield_when_idle 1";
  }
  return finding;
}

/// The device of each rank, where all have one.
Finding about_device(comm::Communicator& world, const train::Config& config, const comm::Session& session,
                     std::unique_ptr<device::Device>& device) {
  const Texts failed = failures(world, [&] { device = train::make_run_device(config, session); });
  if (!failed.empty()) {
    device.reset();
    return {"device", Health::bad, summary(failed)};
  }
  return {"device", Health::good, summary(gather(world, device->description()))};
}

Finding about_gpu_beside(comm::Communicator& world, const comm::Session& session) {
  if (device::cuda_version().empty())
    return {"GPU", Health::good, "this cartan was built without CUDA; run.device = cpu needs none"};
  device::DeviceOptions options;
  options.local_rank = session.node_rank();
  options.local_ranks = session.ranks_on_node();
  std::unique_ptr<device::Device> gpu;
  const Texts failed = failures(world, [&] { gpu = device::make_device(device::DeviceKind::cuda, options); });
  if (!failed.empty()) return {"GPU", Health::good, "none is used; " + summary(failed)};
  return {"GPU", Health::notable, "not used: " + summary(gather(world, gpu->description())),
          "run.device = cuda trains on it"};
}

/// Variables that slow NCCL down: people set them to get past a fault, and forget.
std::string doubtful(const std::vector<comm::NcclSetting>& settings, bool has_network) {
  for (const comm::NcclSetting& setting : settings) {
    if (setting.value != "1") continue;
    if (setting.name == "NCCL_P2P_DISABLE")
      return "NCCL_P2P_DISABLE = 1 sends what GPUs of a node exchange through the host's memory: unset it "
             "where "
             "it is not needed";
    if (setting.name == "NCCL_IB_DISABLE" && has_network)
      return "NCCL_IB_DISABLE = 1 leaves InfiniBand unused: unset it where there is one";
  }
  return {};
}

/// Throws EnvironmentError where the sum of the ranks' numbers, on the GPUs, is another one.
void add_up_ranks(comm::Communicator& plane, device::Device& gpu) {
  device::Stream& stream = gpu.compute_stream();
  const device::Buffer there = plane.allocate_exchange(gpu, sizeof(std::int64_t),
                                                       device::MemoryKind::communication, "a rank's number");
  std::int64_t number = plane.rank();
  gpu.copy_in(there.data(), &number, sizeof number, stream);
  plane.sum_integers({there.as<std::int64_t>(), 1}, stream);
  gpu.copy_out(&number, there.data(), sizeof number, stream);
  const std::int64_t expected = std::int64_t{plane.size()} * (plane.size() - 1) / 2;
  if (number != expected)
    throw EnvironmentError("the sum of the ranks' numbers is {}, expected {}", number, expected);
}

Finding about_nccl(comm::Communicator& world, const train::Config& config, comm::Session& session,
                   device::Device* gpu) {
  const comm::NcclEnvironment environment(config.nccl);
  Finding finding{"NCCL", Health::good, comm::nccl_version()};
  if (gpu != nullptr && world.size() > 1) {
    const Texts failed = failures(world, [&] {
      comm::MeshShape shape;
      shape.dp = world.size();
      comm::Mesh mesh(session, shape, gpu->kind(), {config.watch.of_mesh(), config.nccl});
      add_up_ranks(mesh.data_plane(), *gpu);
    });
    if (!failed.empty()) {
      finding.health = Health::bad;
      finding.text += ", which does not connect the GPUs: " + summary(failed);
      finding.advice = "set NCCL_DEBUG=INFO and start again: NCCL says more";
      return finding;
    }
    finding.text += ", which connects the GPUs";
  }
  const std::vector<comm::NcclSetting> settings = environment.settings();
  Texts lines;
  lines.reserve(settings.size());
  for (const comm::NcclSetting& setting : settings)
    lines.push_back(fmt::format("{}={} ({})", setting.name, setting.value, setting.source));
  finding.text += "; " + summary(gather(world, lines.empty() ? "no variable is set"
                                                             : fmt::format("{}", fmt::join(lines, ", "))));
  finding.advice = doubtful(settings, world.max(session.ranks_on_node() < world.size() ? 1 : 0) > 0);
  if (!finding.advice.empty()) finding.health = Health::notable;
  return finding;
}

}  // namespace

std::string name_of(Health health) {
  return health == Health::good ? "good" : health == Health::notable ? "notable" : "bad";
}

std::vector<Finding> examine(const train::Config& config, comm::Session& session) {
  comm::MeshShape shape;
  shape.dp = session.world_size();
  comm::Mesh mesh(session, shape, device::DeviceKind::cpu);
  comm::Communicator& world = mesh.world();
  std::vector<Finding> findings{about_mpi(world, session), about_cpus(world, config, session)};
  std::unique_ptr<device::Device> device;
  findings.push_back(about_device(world, config, session, device));
  const bool on_gpu = config.run.device == "cuda";
  if (!on_gpu) findings.push_back(about_gpu_beside(world, session));
  if (!device::cuda_version().empty())
    findings.push_back(about_nccl(world, config, session, on_gpu ? device.get() : nullptr));
  findings.push_back(about_run_dir(world, config.run.dir));
  return findings;
}

}  // namespace cartan::tools
