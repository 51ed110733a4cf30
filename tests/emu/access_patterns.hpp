// How well the accesses of kernels use the memory system. While config.profile is set, the k-th accesses of a
// warp's lanes at one instruction count as one request. A request to global memory moves sectors of 32 bytes;
// one to shared memory takes a pass for each different word that it wants of the same bank (of 32, 4 bytes
// wide), after accesses of 8 and 16 bytes have been split into two halves or four quarters of the warp.
// Atomic operations are left out. Where a lane skips an access, its later ones count with earlier ones of
// others: measure full tiles.
//
// Kernels are named without their template arguments: all instances count together. The functions throw
// std::invalid_argument for a kernel that has not run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace emu {

/// The requests of one source line.
struct AccessPattern {
  std::string kernel, line;
  bool is_global = false, writes = false;
  unsigned bytes = 0;  ///< of one access
  std::uint64_t accesses = 0;
  std::uint64_t requests = 0;
  std::uint64_t units = 0;  ///< sectors or passes
  std::uint64_t least = 0;  ///< units if the different bytes lay side by side, or in different banks
};

/// Since the last call of forget_patterns.
std::vector<AccessPattern> access_patterns();
void forget_patterns();
/// One line for each pattern to stderr. EMU_PROFILE=1 does it when the program ends.
void print_patterns();

/// Sectors of a request to global memory on average, of the source line where that is most. 16 are ideal for
/// accesses of 16 bytes, 2 for those of two bytes.
double sectors_per_request(const std::string& kernel);
/// Sectors moved over those that the bytes need: 1 is ideal.
double sector_excess(const std::string& kernel);
/// All sectors of all requests, in bytes: what a GPU without caches would move.
std::uint64_t sector_bytes_moved(const std::string& kernel);
/// Passes of a request to shared memory over the least, of the source line where that is most: 1 without
/// conflicts.
double bank_passes(const std::string& kernel);
/// That the threads ask of global memory, in both directions.
std::uint64_t bytes_moved(const std::string& kernel);
/// bytes_moved over the number of accesses: 16 if all of them are packs.
double bytes_per_access(const std::string& kernel);

// For the checker and the grid.
void note_pattern(const void* address, std::size_t bytes, bool writes, bool is_global, const void* code);
/// A block of this kernel has ended.
void fold_patterns(const void* kernel);

}  // namespace emu
