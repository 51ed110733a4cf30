// Errors of the CUDA libraries as exceptions. A failure of the device is a fault of the environment (exit
// code 71).
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

namespace cartan::device::cuda {

/// Throws EnvironmentError that names `what` (a call, an operation, a tensor) and the error, if there is one.
void check(cudaError_t error, const char* what);
void check(cublasStatus_t status, const char* what);

}  // namespace cartan::device::cuda
