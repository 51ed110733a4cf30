#include "device/cuda/errors.hpp"

#include "cartan/core/error.hpp"
#include "kernels/host.hpp"

namespace cartan::device::cuda {

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw EnvironmentError("cuda: {} failed: {} ({})", what, cudaGetErrorString(error),
                         cudaGetErrorName(error));
}

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw EnvironmentError("cuda: {} failed: {} ({})", what, cublasLtGetStatusString(status),
                         cublasLtGetStatusName(status));
}

}  // namespace cartan::device::cuda

namespace cartan::kernels {

void check(cudaError_t error, const char* what) { device::cuda::check(error, what); }

void refuse(DType dtype) {
  throw InternalError("a kernel was asked to compute in {}: expected fp32, bf16 or fp16", name_of(dtype));
}

void refuse_tokens(Index tokens, Index most) {
  throw ConfigError(
      "a micro-batch of {} tokens is more than the cuda device sums at a time, {} tokens: use a smaller "
      "batch.micro",
      tokens, most);
}

void refuse(const char* operation, const char* what, Index found, Index most) {
  throw ConfigError(
      "{} of {} {}: the cuda device takes up to {}; use fewer ranks or sequences, or a smaller rank of "
      "the gradient hook",
      operation, found, what, most);
}

}  // namespace cartan::kernels
