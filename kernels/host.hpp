// What kernels need of the device that launches them; defined in src/device/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include "cartan/core/types.hpp"
#include "cartan/device/view.hpp"

namespace cartan::kernels {

/// Throws EnvironmentError that names `what`, if a call failed.
void check(cudaError_t error, const char* what);

/// Throws InternalError: an element type that kernels do not compute in.
[[noreturn]] void refuse(DType dtype);
/// Throws ConfigError: a micro-batch has more tokens than the scratch memory of a kernel takes.
[[noreturn]] void refuse_tokens(Index tokens, Index most);
/// Throws ConfigError: `operation` was given `found` of `what`, the device takes `most`.
[[noreturn]] void refuse(const char* operation, const char* what, Index found, Index most);

/// A FoldPlan and its slots as a kernel parameter.
struct Fold {
  static constexpr int kMaxLeaves = 1024, kMaxSlots = 32, kMaxDepth = 16;

  float* slots[kMaxSlots];  ///< where the parameter starts in each
  int depth_before;
  int leaves;
  unsigned char merges[kMaxLeaves];
};

/// Throws ConfigError where a micro-batch has more leaves or a deeper stack than fits.
///
Fold make_fold(const device::GradientView& view);

}  // namespace cartan::kernels
