// Reads the affinity mask, /proc/cpuinfo and CPUID.
#include "device/cpu/machine.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <dnnl.hpp>
#include <fstream>

namespace cartan::device::cpu {
namespace {

/// Ranks on this node as the launcher says; 1 where it says nothing.
int ranks_on_node() {
  for (const char* name :
       {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "SLURM_TASKS_PER_NODE"}) {
    const char* value = std::getenv(name);
    if (value == nullptr) continue;
    const int ranks = std::atoi(value);  // Slurm writes "4(x2)"; the leading number is meant
    if (ranks > 0) return ranks;
  }
  return 1;
}

}  // namespace

int default_threads() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return std::max(1, static_cast<int>(online));
  const int mine = CPU_COUNT(&mask);
  const bool bound = mine < online;
  return std::max(1, bound ? mine : mine / ranks_on_node());
}

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const auto colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown CPU";
}

std::string instruction_set() {
  const auto isa = dnnl::get_effective_cpu_isa();
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
  if (isa == dnnl::cpu_isa::avx512_core_amx) return "AVX-512 with AMX";
  if (avx512 && __builtin_cpu_supports("avx512bf16")) return "AVX-512 with bf16";
  if (avx512) return "AVX-512";
  if (__builtin_cpu_supports("avx2")) return "AVX2";
  return "SSE";
}

bool prefers_bf16_products() {
  const auto isa = dnnl::get_effective_cpu_isa();
  if (isa == dnnl::cpu_isa::avx512_core_amx) return true;
  return __builtin_cpu_is("amd") && isa == dnnl::cpu_isa::avx512_core_bf16;
}

}  // namespace cartan::device::cpu
