// Reads the variables that mpirun, srun and PMI launchers set.
#include "comm/launch.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "cartan/core/error.hpp"
#include "cartan/core/text.hpp"

namespace cartan::comm {
namespace {

/// The number that `text` starts with, so that "4(x2)" and "8,4" give their first one.
std::optional<int> leading_number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

std::optional<int> number_of(const Environment& environment, const char* name) {
  const auto text = environment(name);
  return text ? leading_number(*text) : std::nullopt;
}

/// "4(x2),3" (four tasks on each of two nodes, then three) gives 4: the fullest node.
std::optional<int> fullest_node(const Environment& environment, const char* name) {
  const auto text = environment(name);
  std::optional<int> most;
  if (!text) return most;
  for (const std::string& part : split(*text, ',')) {
    const auto tasks = leading_number(part);
    if (tasks && (!most || *tasks > *most)) most = tasks;
  }
  return most;
}

constexpr const char* kHowToStart =
    "start with `srun --mpi=pmix` (`srun --mpi=list` shows what this Slurm offers), or with this MPI's own "
    "mpirun";

}  // namespace

std::optional<std::string> process_environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
}

std::optional<int> tasks_by_launcher(const Environment& environment) {
  if (environment("OMPI_COMM_WORLD_SIZE")) return std::nullopt;
  if (const auto tasks = number_of(environment, "PMI_SIZE")) return tasks;
  return number_of(environment, "SLURM_STEP_NUM_TASKS");
}

void refuse_singletons(const Environment& environment, int world_size) {
  const auto tasks = tasks_by_launcher(environment);
  if (!tasks || *tasks <= world_size) return;
  throw EnvironmentError(
      "the launcher started {} tasks, but MPI sees {} of them, so each would train alone: {}", *tasks,
      world_size, kHowToStart);
}

void refuse_launch_without_pmi(const Environment& environment) {
  const auto tasks = number_of(environment, "SLURM_STEP_NUM_TASKS");
  if (!tasks || *tasks <= 1) return;
  for (const char* name : {"PMIX_RANK", "PMIX_NAMESPACE", "PMI_RANK", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (environment(name)) return;
  throw EnvironmentError("srun started {} tasks without PMIx, so each would train alone: {}", *tasks,
                         kHowToStart);
}

int expected_ranks_on_node(const Environment& environment) {
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}) {
    if (const auto ranks = number_of(environment, name)) return std::max(1, *ranks);
  }
  for (const char* name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"}) {
    if (const auto ranks = fullest_node(environment, name)) return std::max(1, *ranks);
  }
  return 1;
}

bool is_crowded(const Environment& environment, int cpus) {
  const int threads = std::max(1, number_of(environment, "OMP_NUM_THREADS").value_or(1));
  return expected_ranks_on_node(environment) > cpus / threads;
}

}  // namespace cartan::comm
