// Matrix products by cuBLASLt. A product's algorithm is chosen once for its shape (the library's first choice
// without atomic sums, for a workspace of fixed size), so that the same shape gives the same bits in every
// call; several sequences are one batched call with the algorithm of one sequence, or a call each where it
// cannot do all.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <array>
#include <map>
#include <memory>

#include "cartan/device/view.hpp"
#include "kernels/scratch.hpp"

namespace cartan::device::cuda {

/// out[b] = out[b] * accumulate + left[b] op(right) + bias for b < batch; row-major. Of 8-bit codes the
/// library multiplies rows by rows only: left as it is, right transposed.
struct Product {
  ConstMatrix left;   ///< of the first batch [rows, depth], or [depth, rows] where it is transposed
  ConstMatrix right;  ///< [depth, cols], or [cols, depth] where it is transposed; the same for all
  Matrix out;         ///< of the first batch [rows, cols]
  ConstVector bias{};
  bool transposes_left = false, transposes_right = false, accumulates = false;
  Index batch = 1;
  Index left_step = 0, out_step = 0;  ///< elements from one batch to the next
};

/// Not thread-safe.
class Gemm {
 public:
  Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;
  ~Gemm();

  /// Throws EnvironmentError where the library has no algorithm.
  void multiply(const Product& product, const kernels::Scratch& workspace, cudaStream_t stream);

 private:
  struct Plan;
  using Key = std::array<Index, 22>;
  /// The workspace has to be the same in all calls.
  const Plan& plan_of(const Product& product, std::size_t workspace_bytes);

  cublasLtHandle_t handle_ = nullptr;
  std::map<Key, std::unique_ptr<Plan>> plans_;
};

/// What a product may use beside its operands; the library's advice for current GPUs.
inline constexpr std::size_t kGemmWorkspaceBytes = std::size_t{32} << 20;

}  // namespace cartan::device::cuda
