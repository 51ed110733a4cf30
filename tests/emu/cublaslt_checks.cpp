#include "cublaslt_checks.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "memory.hpp"

namespace emu {
namespace {

bool is_aligned(const void* data, const MatrixLayout& layout, int exponent) {
  const std::uint64_t step =
      layout.batch > 1 ? static_cast<std::uint64_t>(layout.batch_step) * size_of(layout.type) : 0;
  return ((reinterpret_cast<std::uintptr_t>(data) | step) & ((std::uint64_t{1} << exponent) - 1)) == 0;
}

/// One past the last byte that a matrix has, all batches together.
std::uint64_t extent(const MatrixLayout& layout) {
  const auto steps =
      layout.batch_step * (layout.batch - 1) + layout.leading * (static_cast<std::int64_t>(layout.cols) - 1);
  return (static_cast<std::uint64_t>(steps) + layout.rows) * size_of(layout.type);
}

// The manual, "8-bit floating point data types usage": A transposed and B not, addresses and leading
// dimensions at multiples of 16 bytes, M and K multiples of 16; N is held to the same here, as the matrix is
// B of another product.
const char* fault_in_8_bits(const Matmul& product) {
  const MatrixLayout &a = product.a, &b = product.b, &d = product.d;
  if (!has_8_bits(a.type) || !has_8_bits(b.type)) return "one factor has 8 bits, the other one has not";
  if (a.type == CUDA_R_8F_E5M2 && b.type == CUDA_R_8F_E5M2) return "not both factors may be e5m2";
  if (d.type != CUDA_R_16BF && d.type != CUDA_R_32F)
    return "D of 8-bit factors must be bf16 or fp32 (fp16 and 8 bits are not emulated)";
  if (product.description.transposes_a != CUBLAS_OP_T || product.description.transposes_b != CUBLAS_OP_N)
    return "8-bit factors must be A transposed and B not";
  if (d.rows % 16 != 0 || d.cols % 16 != 0 || product.depth() % 16 != 0)
    return "a dimension of a product of 8-bit factors is no multiple of 16";
  for (const MatrixLayout* layout : {&a, &b, &d})
    if (static_cast<std::uint64_t>(layout->leading) * size_of(layout->type) % 16 != 0)
      return "a leading dimension of a product of 8-bit factors is no multiple of 16 bytes";
  if (product.description.fast_accumulation != 0) return "sums with fewer bits are not emulated";
  if (product.has_bias() && product.bias_type() != CUDA_R_16BF)
    return "the bias of a product of 8-bit factors must be bf16";
  return nullptr;
}

}  // namespace

int alignment_of(const void* data) {
  return std::min(8, std::countr_zero(reinterpret_cast<std::uintptr_t>(data)));
}

const char* fault_in(const Matmul& product) {
  const MatrixLayout &a = product.a, &b = product.b, &c = product.c, &d = product.d;
  if (product.description.compute != CUBLAS_COMPUTE_32F || product.description.scale != CUDA_R_32F)
    return "only sums in fp32 are emulated";
  const bool in_8_bits = has_8_bits(a.type) || has_8_bits(b.type);
  if (!in_8_bits && (size_of(a.type) == 0 || a.type != b.type))
    return "A and B must both be fp32, bf16 or fp16";
  if (!in_8_bits && d.type != a.type && d.type != CUDA_R_32F) return "D must have the factors' type or fp32";
  if (!in_8_bits && (product.description.scale_a != nullptr || product.description.scale_b != nullptr))
    return "only 8-bit factors have scales";
  if (c.type != d.type) return "C must have D's type";
  for (const MatrixLayout* layout : {&a, &b, &c, &d}) {
    if (layout->rows == 0 || layout->cols == 0) return "a matrix is empty";
    if (layout->leading < static_cast<std::int64_t>(layout->rows))
      return "a leading dimension is below the rows";
    if (layout->batch != d.batch || layout->batch < 1) return "the batch counts differ";
  }
  const bool transposes_a = product.description.transposes_a != CUBLAS_OP_N;
  const bool transposes_b = product.description.transposes_b != CUBLAS_OP_N;
  if (d.rows != (transposes_a ? a.cols : a.rows)) return "rows of D and of op(A) differ";
  if (d.cols != (transposes_b ? b.rows : b.cols)) return "columns of D and of op(B) differ";
  if (product.depth() != (transposes_b ? b.cols : b.rows)) return "inner dimensions differ";
  if (c.rows != d.rows || c.cols != d.cols) return "shapes of C and D differ";
  if (d.batch > 1 &&
      d.batch_step < d.leading * static_cast<std::int64_t>(d.cols - 1) + static_cast<std::int64_t>(d.rows))
    return "the products of a batch overlap";
  if (product.description.epilogue != CUBLASLT_EPILOGUE_DEFAULT && !product.has_bias())
    return "only the epilogues DEFAULT and BIAS are emulated";
  if (in_8_bits) return fault_in_8_bits(product);
  if (product.has_bias() && product.bias_type() != d.type) return "the bias must have D's type";
  return nullptr;
}

const char* mismatch(const Matmul& product, const MatmulAlgorithm& algorithm) {
  if (algorithm.mark != MatmulAlgorithm::kMark) return "the algorithm was not chosen by the library";
  if (algorithm.rows != product.d.rows || algorithm.cols != product.d.cols ||
      algorithm.depth != product.depth())
    return "the algorithm was chosen for another shape";
  if (algorithm.type_a != product.a.type || algorithm.type_b != product.b.type ||
      algorithm.type_d != product.d.type)
    return "the algorithm was chosen for other types";
  if (algorithm.transposes_a != product.description.transposes_a ||
      algorithm.transposes_b != product.description.transposes_b ||
      algorithm.epilogue != product.description.epilogue)
    return "the algorithm was chosen for another operation";
  if (algorithm.leading_a != product.a.leading || algorithm.leading_b != product.b.leading ||
      algorithm.leading_d != product.d.leading)
    return "the algorithm was chosen for other strides";
  return nullptr;
}

const char* misalignment(const MatmulCall& call) {
  const MatmulAlgorithm& promised = call.algorithm;
  if (has_8_bits(call.a.type) && !(is_aligned(call.a_data, call.a, 4) && is_aligned(call.b_data, call.b, 4) &&
                                   is_aligned(call.c_data, call.c, 4) && is_aligned(call.d_data, call.d, 4)))
    return "a matrix of a product of 8-bit factors is not at a multiple of 16 bytes";
  if (!is_aligned(call.a_data, call.a, promised.alignment_a)) return "A is less aligned than promised";
  if (!is_aligned(call.b_data, call.b, promised.alignment_b)) return "B is less aligned than promised";
  if (!is_aligned(call.c_data, call.c, promised.alignment_c)) return "C is less aligned than promised";
  if (!is_aligned(call.d_data, call.d, promised.alignment_d)) return "D is less aligned than promised";
  if (call.product().has_bias() && alignment_of(call.description.bias) < promised.alignment_bias)
    return "the bias is less aligned than the one that the algorithm was chosen with";
  return nullptr;
}

const char* fault_in_memory(const MatmulCall& call) {
  const auto inside = [](const void* data, std::uint64_t bytes) { return is_device_range(data, bytes); };
  if (!inside(call.a_data, extent(call.a))) return "A is not in device memory";
  if (!inside(call.b_data, extent(call.b))) return "B is not in device memory";
  if (!inside(call.c_data, extent(call.c))) return "C is not in device memory";
  if (!inside(call.d_data, extent(call.d))) return "D is not in device memory";
  if (call.product().has_bias() &&
      !inside(call.description.bias, call.d.rows * size_of(call.product().bias_type())))
    return "the bias is not in device memory";
  for (const float* const scale : {call.description.scale_a, call.description.scale_b})
    if (scale != nullptr && !inside(scale, sizeof *scale)) return "a scale is not in device memory";
  if (call.workspace_bytes > 0 && !inside(call.workspace, call.workspace_bytes))
    return "the workspace is not in device memory";
  if (call.workspace_bytes > 0 && alignment_of(call.workspace) < 8)
    return "the workspace is not aligned to 256 bytes";
  const auto meets = [&](const unsigned char* data, std::uint64_t bytes) {
    return data < call.d_data + extent(call.d) && call.d_data < data + bytes;
  };
  // Interleaved views of one matrix may share a range without an element in common.
  if (call.a_data == call.d_data || call.b_data == call.d_data) return "D is one of the factors";
  if (call.workspace_bytes > 0 && meets(call.workspace, call.workspace_bytes))
    return "D lies in the workspace";
  if (call.c_data != call.d_data && call.beta != 0 && meets(call.c_data, extent(call.c)))
    return "C and D overlap without being the same";
  if (call.workspace_bytes < workspace_of(call.algorithm, call.d.batch))
    return "the workspace is smaller than what the algorithm needs for so many products";
  return nullptr;
}

}  // namespace emu
