// Kernels that are wrong in one way each, and kernels that look like them and are right (bugs.cu).
#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace emu::testing {

struct Case {
  const char* name;
  void (*kernel)(float* out, const float* in);
  unsigned blocks = 1;
  /// What a finding must say, in every order of threads; empty: nothing is found.
  std::string finding = "";
};
inline std::ostream& operator<<(std::ostream& stream, const Case& printed) { return stream << printed.name; }

inline constexpr unsigned kCaseThreads = 256;
/// Floats of `in` that are set, and of `out`, which is zero.
inline constexpr unsigned kCaseInputs = 1024, kCaseOutputs = 256;
inline constexpr unsigned kCaseSharedBytes = 4096;

std::vector<Case> cases();

}  // namespace emu::testing
