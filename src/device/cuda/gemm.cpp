// cuBLASLt counts columns first: a row-major out = left right is out^T = right^T left^T there, so the right
// factor is its A and the left one its B.
#include "device/cuda/gemm.hpp"

#include <algorithm>
#include <bit>

#include "cartan/core/error.hpp"
#include "device/cuda/errors.hpp"

namespace cartan::device::cuda {
namespace {

cudaDataType_t library_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    case DType::e4m3:
      return CUDA_R_8F_E4M3;
    case DType::e5m2:
      return CUDA_R_8F_E5M2;
    default:
      throw InternalError("a product of {}: expected fp32, bf16, fp16 or 8 bits", name_of(dtype));
  }
}

/// The largest power of two up to 256 that divides an address and all steps from it.
std::uint32_t alignment_of(const void* data, DType dtype, Index stride, Index step) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const auto bytes = static_cast<std::uintptr_t>(stride | step) * size_of(dtype);
  return std::uint32_t{1} << std::min(8, std::countr_zero(address | bytes));
}

template <class Handle, cublasStatus_t (*kDestroy)(Handle)>
class Owned {
 public:
  Owned() = default;
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    if (handle_ != nullptr) kDestroy(handle_);
  }
  Handle* out() { return &handle_; }
  Handle get() const { return handle_; }

 private:
  Handle handle_ = nullptr;
};

using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Description = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

/// A row-major matrix as the library sees it.
void make_layout(Layout& layout, const ConstMatrix& m) {
  check(cublasLtMatrixLayoutCreate(layout.out(), library_type(m.dtype), static_cast<std::uint64_t>(m.cols),
                                   static_cast<std::uint64_t>(m.rows), m.stride),
        "cublasLtMatrixLayoutCreate");
}

void set_batch(Layout& layout, Index batch, Index step) {
  const auto count = static_cast<std::int32_t>(batch);
  const std::int64_t offset = step;
  check(cublasLtMatrixLayoutSetAttribute(layout.get(), CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                         sizeof count),
        "cublasLtMatrixLayoutSetAttribute");
  check(cublasLtMatrixLayoutSetAttribute(layout.get(), CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &offset,
                                         sizeof offset),
        "cublasLtMatrixLayoutSetAttribute");
}

template <class T>
void set(const Description& description, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  check(cublasLtMatmulDescSetAttribute(description.get(), attribute, &value, sizeof value),
        "cublasLtMatmulDescSetAttribute");
}

/// Of codes: what their values are multiplied by.
void set_factors(const Description& description, const Product& p) {
  set(description, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.right.factor);
  set(description, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.left.factor);
}

template <class T>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value),
        "cublasLtMatmulPreferenceSetAttribute");
}

}  // namespace

struct Gemm::Plan {
  Description description;
  Layout left, right, out;
  cublasLtMatmulAlgo_t algorithm{};
  Index batch = 1;  ///< products that one call makes: all, or one where the algorithm cannot do all
};

Gemm::Gemm() { check(cublasLtCreate(&handle_), "cublasLtCreate"); }
Gemm::~Gemm() { cublasLtDestroy(handle_); }

const Gemm::Plan& Gemm::plan_of(const Product& p, std::size_t workspace_bytes) {
  const std::uint32_t
      left_alignment = alignment_of(p.left.data, p.left.dtype, p.left.stride, p.left_step),
      right_alignment = alignment_of(p.right.data, p.right.dtype, p.right.stride, 0),
      out_alignment = alignment_of(p.out.data, p.out.dtype, p.out.stride, p.out_step),
      // The library takes the bias that it chooses an algorithm with for the least aligned one.
      bias_alignment = alignment_of(p.bias.data, p.bias.dtype, 0, 0);
  const Key key{
      p.left.rows,       p.left.cols,        p.left.stride,          static_cast<Index>(p.left.dtype),
      p.right.rows,      p.right.cols,       p.right.stride,         static_cast<Index>(p.right.dtype),
      p.out.rows,        p.out.cols,         p.out.stride,           static_cast<Index>(p.out.dtype),
      p.transposes_left, p.transposes_right, p.bias.data != nullptr, p.batch,
      p.left_step,       p.out_step,         left_alignment,         right_alignment,
      out_alignment,     bias_alignment};
  std::unique_ptr<Plan>& found = plans_[key];
  if (found != nullptr) return *found;

  auto plan = std::make_unique<Plan>();
  check(cublasLtMatmulDescCreate(plan->description.out(), CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "cublasLtMatmulDescCreate");
  const auto operation = [](bool transposes) { return transposes ? CUBLAS_OP_T : CUBLAS_OP_N; };
  set(plan->description, CUBLASLT_MATMUL_DESC_TRANSA, operation(p.transposes_right));
  set(plan->description, CUBLASLT_MATMUL_DESC_TRANSB, operation(p.transposes_left));
  if (p.bias.data != nullptr) {
    set(plan->description, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(plan->description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, library_type(p.bias.dtype));
    set(plan->description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias.data);
  }
  if (has_8_bits(p.left.dtype)) {
    // Tensor cores may keep fewer bits of a sum in 8-bit products: not here.
    set(plan->description, CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{0});
    set_factors(plan->description, p);
  }
  make_layout(plan->left, p.left);
  make_layout(plan->right, p.right);
  make_layout(plan->out, p.out);

  Preference preference;
  check(cublasLtMatmulPreferenceCreate(preference.out()), "cublasLtMatmulPreferenceCreate");
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{workspace_bytes});
  // Partial sums of a cut inner dimension are added in a fixed order, in fp32.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, right_alignment);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, left_alignment);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, out_alignment);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, out_alignment);
  cublasLtMatmulHeuristicResult_t result{};
  int results = 0;
  check(cublasLtMatmulAlgoGetHeuristic(handle_, plan->description.get(), plan->right.get(), plan->left.get(),
                                       plan->out.get(), plan->out.get(), preference.get(), 1, &result,
                                       &results),
        "cublasLtMatmulAlgoGetHeuristic");
  if (results == 0)
    throw EnvironmentError("cuda: cuBLASLt has no algorithm for a product [{} x {}] x [{} x {}] of {} to {}",
                           p.left.rows, p.left.cols, p.right.rows, p.right.cols, name_of(p.left.dtype),
                           name_of(p.out.dtype));
  check(result.state, "cublasLtMatmulAlgoGetHeuristic");
  plan->algorithm = result.algo;
  if (p.batch > 1) {
    set_batch(plan->left, p.batch, p.left_step);
    set_batch(plan->right, p.batch, 0);
    set_batch(plan->out, p.batch, p.out_step);
    // Partial sums of more products need more workspace, and not every algorithm knows batches.
    cublasLtMatmulHeuristicResult_t all{};
    const cublasStatus_t status =
        cublasLtMatmulAlgoCheck(handle_, plan->description.get(), plan->right.get(), plan->left.get(),
                                plan->out.get(), plan->out.get(), &plan->algorithm, &all);
    if (status == CUBLAS_STATUS_SUCCESS && all.workspaceSize <= workspace_bytes) {
      plan->batch = p.batch;
    } else {
      for (Layout* const layout : {&plan->left, &plan->right, &plan->out}) set_batch(*layout, 1, 0);
    }
  }
  found = std::move(plan);
  return *found;
}

void Gemm::multiply(const Product& p, const kernels::Scratch& workspace, cudaStream_t stream) {
  if (p.out.rows == 0 || p.out.cols == 0 || p.batch == 0) return;
  const Index depth = p.transposes_left ? p.left.rows : p.left.cols;
  if (depth == 0) {
    CARTAN_ASSERT(p.bias.data == nullptr && p.batch == 1);
    const std::size_t element = size_of(p.out.dtype);
    if (!p.accumulates)
      check(cudaMemset2DAsync(p.out.data, static_cast<std::size_t>(p.out.stride) * element, 0,
                              static_cast<std::size_t>(p.out.cols) * element,
                              static_cast<std::size_t>(p.out.rows), stream),
            "cudaMemset2DAsync");
    return;
  }
  const Plan& plan = plan_of(p, workspace.bytes);
  if (p.bias.data != nullptr) set(plan.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias.data);
  if (has_8_bits(p.left.dtype)) set_factors(plan.description, p);
  const float alpha = 1, beta = p.accumulates ? 1 : 0;
  for (Index first = 0; first < p.batch; first += plan.batch) {
    const void* const left = advance(p.left.data, p.left.dtype, first * p.left_step);
    void* const out = advance(p.out.data, p.out.dtype, first * p.out_step);
    check(cublasLtMatmul(handle_, plan.description.get(), &alpha, p.right.data, plan.right.get(), left,
                         plan.left.get(), &beta, out, plan.out.get(), out, plan.out.get(), &plan.algorithm,
                         workspace.data, workspace.bytes, stream),
          "cublasLtMatmul");
  }
}

}  // namespace cartan::device::cuda
