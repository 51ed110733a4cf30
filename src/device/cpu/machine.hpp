// What the CPU device learns about the machine it runs on.
#pragma once

#include <string>

namespace cartan::device::cpu {

/// CPUs that this process may use: those of its affinity mask; where the launcher bound nothing, its fair
/// share among the ranks of the node (as Open MPI, MPICH and Slurm tell in the environment). At least 1.
int default_threads();

/// "Intel(R) Xeon(R) ..."; "unknown CPU" where the system does not say.
std::string cpu_model();

/// Best instruction set that cartan's loops use here: "AVX-512 with bf16", "AVX2", ...
std::string instruction_set();

/// Whether products of bf16 numbers run faster with the CPU's bf16 instructions than as fp32 (to which a bf16
/// number converts without loss). True with matrix tiles (AMX), and with the vector instruction on AMD, where
/// it has twice the rate of fp32; on Intel the vector instruction has half of it. Decided from the CPU alone,
/// so results do not change between runs on one type of machine.
bool prefers_bf16_products();

}  // namespace cartan::device::cpu
