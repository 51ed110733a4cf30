// cublasLtMatmul and the choice of its algorithm; the product itself is made by a BLAS in fp32. An algorithm
// remembers what it was chosen for; a use that differs is refused and reported, because the real library
// would read beyond what it checked or launch a kernel that faults.
#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <cblas.h>

#include "cublaslt_checks.hpp"
#include "elements.hpp"
#include "runtime.h"

/// OpenBLAS's; other libraries read the environment.
extern "C" [[gnu::weak]] void openblas_set_num_threads(int);

namespace emu {
namespace {

using Floats = std::vector<float>;

/// A matrix of a batch in device memory.
struct Operand {
  const MatrixLayout& layout;
  const unsigned char* data;
  std::size_t element = size_of(layout.type);

  const unsigned char* column(std::int32_t batch, std::uint64_t col) const {
    return data + (batch * layout.batch_step + static_cast<std::int64_t>(col) * layout.leading) *
                      static_cast<std::int64_t>(element);
  }
  void touch(std::int32_t batch, bool writes) const {
    for (std::uint64_t col = 0; col < layout.cols; ++col)
      emu::touch(column(batch, col), layout.rows * element, writes);
  }
  /// Column-major without gaps.
  Floats floats(std::int32_t batch) const {
    Floats values(layout.rows * layout.cols);
    for (std::uint64_t col = 0; col < layout.cols; ++col)
      read_floats(layout.type, column(batch, col), layout.rows, values.data() + col * layout.rows);
    return values;
  }
};

/// sum[m x n] = op(a) op(b) over the inner indices [first, first + count).
void multiply(const MatmulCall& call, const Floats& a, const Floats& b, std::uint64_t first,
              std::uint64_t count, Floats& sum) {
  const bool transposes_a = call.description.transposes_a != CUBLAS_OP_N;
  const bool transposes_b = call.description.transposes_b != CUBLAS_OP_N;
  // Ranks share the machine, and threads would not change the order of a sum for the same shape anyway.
  if (openblas_set_num_threads != nullptr) openblas_set_num_threads(1);
  const float* const a_part = a.data() + (transposes_a ? first : first * call.a.rows);
  const float* const b_part = b.data() + (transposes_b ? first * call.b.rows : first);
  cblas_sgemm(CblasColMajor, transposes_a ? CblasTrans : CblasNoTrans,
              transposes_b ? CblasTrans : CblasNoTrans, static_cast<int>(call.d.rows),
              static_cast<int>(call.d.cols), static_cast<int>(count), 1.0f, a_part,
              static_cast<int>(call.a.rows), b_part, static_cast<int>(call.b.rows), 0.0f, sum.data(),
              static_cast<int>(call.d.rows));
}

void run_batch(const MatmulCall& call, std::int32_t batch) {
  const Operand a{call.a, call.a_data}, b{call.b, call.b_data}, c{call.c, call.c_data},
      d{call.d, call.d_data};
  a.touch(batch, false);
  b.touch(batch, false);
  if (call.beta != 0) c.touch(batch, false);
  const Floats a_values = a.floats(batch), b_values = b.floats(batch);

  const std::uint64_t depth = call.product().depth(), pieces = call.algorithm.pieces;
  Floats sum(call.d.rows * call.d.cols), piece(pieces > 1 ? sum.size() : 0);
  for (std::uint64_t i = 0; i < pieces; ++i) {
    const std::uint64_t first = depth * i / pieces, end = depth * (i + 1) / pieces;
    multiply(call, a_values, b_values, first, end - first, i == 0 ? sum : piece);
    for (std::size_t k = 0; i > 0 && k < sum.size(); ++k) sum[k] += piece[k];
  }

  float alpha = call.alpha;
  for (const float* const scale : {call.description.scale_a, call.description.scale_b}) {
    if (scale == nullptr) continue;
    touch(scale, sizeof *scale, false);
    alpha *= *scale;
  }
  const Floats before = call.beta != 0 ? c.floats(batch) : Floats();
  Floats bias(call.product().has_bias() ? call.d.rows : 0);
  if (!bias.empty()) {
    const cudaDataType type = call.product().bias_type();
    touch(call.description.bias, bias.size() * size_of(type), false);
    read_floats(type, call.description.bias, bias.size(), bias.data());
  }
  d.touch(batch, true);
  for (std::uint64_t col = 0; col < call.d.cols; ++col) {
    float* const values = sum.data() + col * call.d.rows;
    for (std::uint64_t row = 0; row < call.d.rows; ++row) {
      values[row] *= alpha;
      if (!before.empty()) values[row] += call.beta * before[col * call.d.rows + row];
      if (!bias.empty()) values[row] += bias[row];
    }
    write_floats(call.d.type, values, call.d.rows, const_cast<unsigned char*>(d.column(batch, col)));
  }
}

/// The library leaves anything in its workspace. All calls use its beginning, so that two at a time are
/// found.
void spoil_workspace(const MatmulCall& call) {
  constexpr std::size_t kAlways = 4096;
  const std::size_t bytes =
      std::min(call.workspace_bytes, std::max(kAlways, workspace_of(call.algorithm, call.d.batch)));
  if (bytes == 0) return;
  touch(call.workspace, bytes, true);
  std::memset(call.workspace, 0xff, bytes);
}

int exponent(std::uint32_t power_of_two) { return std::countr_zero(power_of_two); }

MatmulAlgorithm choose(const Matmul& product, const MatmulPreference& preference) {
  MatmulAlgorithm chosen;
  chosen.type_a = static_cast<std::uint8_t>(product.a.type);
  chosen.type_b = static_cast<std::uint8_t>(product.b.type);
  chosen.type_d = static_cast<std::uint8_t>(product.d.type);
  chosen.epilogue = static_cast<std::uint8_t>(product.description.epilogue);
  chosen.transposes_a = static_cast<std::uint8_t>(product.description.transposes_a);
  chosen.transposes_b = static_cast<std::uint8_t>(product.description.transposes_b);
  chosen.alignment_a = static_cast<std::uint8_t>(exponent(preference.alignment_a));
  chosen.alignment_b = static_cast<std::uint8_t>(exponent(preference.alignment_b));
  chosen.alignment_c = static_cast<std::uint8_t>(exponent(preference.alignment_c));
  chosen.alignment_d = static_cast<std::uint8_t>(exponent(preference.alignment_d));
  // The manual: the bias pointer's value at this time is the alignment to expect.
  if (product.has_bias())
    chosen.alignment_bias = static_cast<std::uint8_t>(std::min(4, alignment_of(product.description.bias)));
  chosen.rows = static_cast<std::uint32_t>(product.d.rows);
  chosen.cols = static_cast<std::uint32_t>(product.d.cols);
  chosen.depth = static_cast<std::uint32_t>(product.depth());
  chosen.leading_a = product.a.leading;
  chosen.leading_b = product.b.leading;
  chosen.leading_d = product.d.leading;
  // As on a GPU: a small result of a long sum is made of pieces.
  const bool may_cut = (preference.reduction_schemes & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) != 0;
  if (may_cut && product.depth() >= 256 && product.d.rows * product.d.cols <= 64 * 64) {
    chosen.pieces = 2;
    if (workspace_of(chosen, product.d.batch) > preference.workspace_bytes) chosen.pieces = 1;
  }
  return chosen;
}

cublasStatus_t refuse(const char* call, const char* why,
                      cublasStatus_t status = CUBLAS_STATUS_INVALID_VALUE) {
  report(std::string(call) + ": " + why);
  return status;
}

MatmulAlgorithm algorithm_of(const cublasLtMatmulAlgo_t& algo) {
  MatmulAlgorithm algorithm;
  std::memcpy(static_cast<void*>(&algorithm), &algo, sizeof algorithm);
  return algorithm;
}

const MatrixLayout& layout_of(cublasLtMatrixLayout_t handle) {
  return *reinterpret_cast<MatrixLayout*>(handle);
}

}  // namespace

std::size_t workspace_of(const MatmulAlgorithm& algorithm, std::int32_t batch) {
  if (algorithm.pieces == 1) return 0;
  return std::size_t{algorithm.pieces} * algorithm.rows * algorithm.cols * sizeof(float) *
         static_cast<std::size_t>(batch);
}

}  // namespace emu

using namespace emu;

extern "C" {

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results, int* found) {
  constexpr const char* kCall = "cublasLtMatmulAlgoGetHeuristic";
  if (is_to_fail(kCall)) return CUBLAS_STATUS_INTERNAL_ERROR;
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (description == nullptr || a == nullptr || b == nullptr || c == nullptr || d == nullptr ||
      preference == nullptr || results == nullptr || found == nullptr || wanted < 1)
    return CUBLAS_STATUS_INVALID_VALUE;
  *found = 0;
  const auto& preferred = *reinterpret_cast<MatmulPreference*>(preference);
  for (const std::uint32_t alignment :
       {preferred.alignment_a, preferred.alignment_b, preferred.alignment_c, preferred.alignment_d})
    if (!std::has_single_bit(alignment)) return refuse(kCall, "an alignment is not a power of two");
  const Matmul product{*reinterpret_cast<MatmulDescription*>(description), layout_of(a), layout_of(b),
                       layout_of(c), layout_of(d)};
  if (const char* const why = fault_in(product)) return refuse(kCall, why, CUBLAS_STATUS_NOT_SUPPORTED);

  MatmulAlgorithm algorithm = choose(product, preferred);
  const auto add = [&] {
    cublasLtMatmulHeuristicResult_t& result = results[(*found)++];
    result = {};
    std::memcpy(&result.algo, &algorithm, sizeof algorithm);
    result.workspaceSize = workspace_of(algorithm, product.d.batch);
    result.wavesCount = 1.0f;
  };
  add();
  if (wanted > 1 && algorithm.pieces > 1) {
    algorithm.pieces = 1;
    add();
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algo,
                                       cublasLtMatmulHeuristicResult_t* result) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  const Matmul product{*reinterpret_cast<MatmulDescription*>(description), layout_of(a), layout_of(b),
                       layout_of(c), layout_of(d)};
  const MatmulAlgorithm algorithm = algorithm_of(*algo);
  if (fault_in(product) != nullptr) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (mismatch(product, algorithm) != nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  result->state = CUBLAS_STATUS_SUCCESS;
  result->workspaceSize = workspace_of(algorithm, product.d.batch);
  result->wavesCount = 1.0f;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description, const void* alpha,
                              const void* a_data, cublasLtMatrixLayout_t a, const void* b_data,
                              cublasLtMatrixLayout_t b, const void* beta, const void* c_data,
                              cublasLtMatrixLayout_t c, void* d_data, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t* algo, void* workspace, std::size_t workspace_bytes,
                              cudaStream_t stream) {
  constexpr const char* kCall = "cublasLtMatmul";
  if (is_to_fail(kCall)) return CUBLAS_STATUS_EXECUTION_FAILED;
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (description == nullptr || a == nullptr || b == nullptr || c == nullptr || d == nullptr ||
      alpha == nullptr || beta == nullptr || a_data == nullptr || b_data == nullptr || c_data == nullptr ||
      d_data == nullptr)
    return refuse(kCall, "an argument is null");
  auto call = std::make_shared<MatmulCall>(MatmulCall{
      *reinterpret_cast<MatmulDescription*>(description), layout_of(a), layout_of(b), layout_of(c),
      layout_of(d), MatmulAlgorithm{}, *static_cast<const float*>(alpha), *static_cast<const float*>(beta),
      static_cast<const unsigned char*>(a_data), static_cast<const unsigned char*>(b_data),
      static_cast<const unsigned char*>(c_data), static_cast<unsigned char*>(d_data),
      static_cast<unsigned char*>(workspace), workspace_bytes});
  const Matmul product = call->product();
  if (const char* const why = fault_in(product)) return refuse(kCall, why, CUBLAS_STATUS_NOT_SUPPORTED);
  if (product.has_bias() && product.description.bias == nullptr) return refuse(kCall, "the bias is null");
  if (algo == nullptr)
    return refuse(kCall, "no algorithm is given: which one runs is then left to the library");
  call->algorithm = algorithm_of(*algo);
  if (const char* const why = mismatch(product, call->algorithm)) return refuse(kCall, why);
  if (const char* const why = misalignment(*call)) return refuse(kCall, why);
  if (const char* const why = fault_in_memory(*call)) return refuse(kCall, why);
  const std::string name = "cublasLtMatmul " + std::to_string(call->d.rows) + "x" +
                           std::to_string(call->d.cols) + "x" + std::to_string(product.depth());
  const cudaError_t error = enqueue(stream, name, [call] {
    spoil_workspace(*call);
    for (std::int32_t batch = 0; batch < call->d.batch; ++batch) run_batch(*call, batch);
    return Step::done;
  });
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
}
