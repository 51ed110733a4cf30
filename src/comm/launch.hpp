// What the environment says about how this process was started. Hints only: MPI itself has the last word. The
// environment is passed in, so that tests can pretend.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace cartan::comm {

/// The value of a variable, or nullopt; the process's own is read by process_environment.
using Environment = std::function<std::optional<std::string>(const char* name)>;
std::optional<std::string> process_environment(const char* name);

/// How many tasks the launcher says it started in this job step, where it is not mpirun (whose ranks always
/// know each other). In a batch script SLURM_NTASKS counts what srun may start, not what runs, so only the
/// step's own variables count.
std::optional<int> tasks_by_launcher(const Environment& environment);

/// Throws EnvironmentError if the launcher started more tasks than MPI sees: each rank would train alone.
void refuse_singletons(const Environment& environment, int world_size);

/// Throws EnvironmentError if srun started several tasks without telling them how to find each other (no PMIx
/// or PMI variable). To be called before MPI starts: some builds of Open MPI end the process when they meet
/// this.
void refuse_launch_without_pmi(const Environment& environment);

/// Ranks that will share this node, as far as is known before MPI starts; 1 if nothing is known.
int expected_ranks_on_node(const Environment& environment);

/// Whether the node is likely to run more waiting threads than CPUs: then a waiting rank must yield its CPU.
/// `cpus` are those this process may use; ranks bound to CPUs of their own count as crowded too, which costs
/// them little.
bool is_crowded(const Environment& environment, int cpus);

}  // namespace cartan::comm
