// What the opaque handles of cuBLASLt hold here: the attributes that cartan sets. Setting another one is an
// error of the call, so that a new use shows at once.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>

namespace emu {

/// Behind cublasLtMatrixLayout_t; column-major.
struct MatrixLayout {
  cudaDataType type;
  std::uint64_t rows, cols;
  std::int64_t leading;  ///< elements from one column to the next
  std::int32_t batch = 1;
  std::int64_t batch_step = 0;
};

/// Behind cublasLtMatmulDesc_t.
struct MatmulDescription {
  cublasComputeType_t compute;
  cudaDataType scale;
  std::int32_t transposes_a = CUBLAS_OP_N, transposes_b = CUBLAS_OP_N;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  std::int32_t bias_type = -1;  ///< that of D
  /// Of 8-bit factors: numbers in device memory that they are multiplied by; null: 1.
  const float *scale_a = nullptr, *scale_b = nullptr;
  std::int8_t fast_accumulation = 0;
};

inline bool has_8_bits(cudaDataType type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }

/// Behind cublasLtMatmulPreference_t.
struct MatmulPreference {
  std::uint64_t workspace_bytes = 0;
  std::uint32_t reduction_schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::uint32_t alignment_a = 256, alignment_b = 256, alignment_c = 256, alignment_d = 256;
};

/// Behind cublasLtMatmulAlgo_t: what it was chosen for, to be compared with what it is used for.
struct MatmulAlgorithm {
  static constexpr std::uint32_t kMark = 0x656d7531;

  std::uint32_t mark = kMark;
  std::uint8_t type_a = 0, type_b = 0, type_d = 0, epilogue = 0;
  std::uint8_t transposes_a = 0, transposes_b = 0;
  /// Exponents of two: what was promised about addresses, and that of the bias.
  std::uint8_t alignment_a = 0, alignment_b = 0, alignment_c = 0, alignment_d = 0, alignment_bias = 0;
  std::uint8_t pieces = 1;  ///< of the inner dimension, with partial sums in the workspace
  std::uint32_t rows = 0, cols = 0, depth = 0;
  std::int64_t leading_a = 0, leading_b = 0, leading_d = 0;
};
static_assert(sizeof(MatmulAlgorithm) <= sizeof(cublasLtMatmulAlgo_t));

std::size_t size_of(cudaDataType type);

/// A matrix product with its layouts, as the entry points get it.
struct Matmul {
  const MatmulDescription& description;
  const MatrixLayout &a, &b, &c, &d;

  std::uint64_t depth() const { return description.transposes_a == CUBLAS_OP_N ? a.cols : a.rows; }
  bool has_bias() const { return description.epilogue == CUBLASLT_EPILOGUE_BIAS; }
  cudaDataType bias_type() const {
    return description.bias_type < 0 ? d.type : static_cast<cudaDataType>(description.bias_type);
  }
};

/// Bytes of workspace that the algorithm needs for one call.
std::size_t workspace_of(const MatmulAlgorithm& algorithm, std::int32_t batch);

}  // namespace emu
