#include <cublasLt.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>

#include "emu/elements.hpp"
#include "emu/emu_fixture.hpp"

namespace emu::testing {
namespace {

constexpr std::size_t kWorkspace = std::size_t{1} << 20;

constexpr bool has_8_bits(cudaDataType type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }
std::size_t size_of_type(cudaDataType type) { return type == CUDA_R_32F ? 4 : has_8_bits(type) ? 1 : 2; }
double epsilon_of(cudaDataType type) {
  return type == CUDA_R_32F ? 0x1p-23 : type == CUDA_R_16F ? 0x1p-11 : 0x1p-8;
}

/// A column-major matrix, or several, with gaps between columns and matrices; gaps hold NaN.
struct TestMatrix {
  cudaDataType type;
  int rows, cols, leading, batch, step;
  std::vector<float> values;
  DeviceArray<unsigned char> memory;
  int offset;  ///< elements before the first

  TestMatrix(cudaDataType type_, int rows_, int cols_, int gap, int batch_, std::mt19937& random,
             int offset_ = 0)
      : type(type_),
        rows(rows_),
        cols(cols_),
        leading(rows_ + gap),
        batch(batch_),
        step(leading * cols_ + 3 * gap),
        memory(static_cast<std::size_t>(offset_ + step * batch_ + 64) * size_of_type(type_)),
        offset(offset_) {
    std::uniform_real_distribution<float> some(-1, 1);
    values.assign(static_cast<std::size_t>(offset + step * batch + 64), NAN);
    for (int b = 0; b < batch; ++b)
      for (int c = 0; c < cols; ++c)
        for (int r = 0; r < rows; ++r) values[index(b, r, c)] = some(random);
    std::vector<unsigned char> bytes(memory.bytes());
    write_floats(type, values.data(), values.size(), bytes.data());
    read_floats(type, bytes.data(), values.size(), values.data());
    EXPECT_EQ(cudaMemcpy(memory.data(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice), cudaSuccess);
  }
  std::size_t index(int b, int r, int c) const {
    return static_cast<std::size_t>(offset + b * step + c * leading + r);
  }
  double at(int b, int r, int c) const { return values[index(b, r, c)]; }
  void* data() { return memory.data() + static_cast<std::size_t>(offset) * size_of_type(type); }
  /// Of one matrix of the batch.
  void* data(int b) {
    return static_cast<unsigned char*>(data()) + static_cast<std::size_t>(b * step) * size_of_type(type);
  }
  std::vector<float> host() {
    const std::vector<unsigned char> bytes = memory.host();
    std::vector<float> found(values.size());
    read_floats(type, bytes.data(), found.size(), found.data());
    return found;
  }
};

struct Shape {
  int m = 5, n = 3, k = 7, gap = 0, batch = 1;
  bool transposes_a = false, transposes_b = false, has_bias = false;
  float alpha = 1, beta = 0;
  cudaDataType in = CUDA_R_32F, out = CUDA_R_32F;
  std::optional<cudaDataType> in_b{};  ///< none: in
};

/// One product with all that its call needs. Members can be spoiled before run().
struct TestProduct {
  explicit TestProduct(const Shape& s, unsigned seed = 1)
      : shape(s),
        random(seed),
        a(s.in, s.transposes_a ? s.k : s.m, s.transposes_a ? s.m : s.k, s.gap, s.batch, random),
        b(s.in_b.value_or(s.in), s.transposes_b ? s.n : s.k, s.transposes_b ? s.k : s.n, s.gap, s.batch,
          random),
        d(s.out, s.m, s.n, s.gap, s.batch, random),
        bias(s.out, s.m, 1, 0, 1, random),
        workspace(kWorkspace) {
    cublasLtCreate(&handle);
    cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    set(CUBLASLT_MATMUL_DESC_TRANSA, s.transposes_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, s.transposes_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (s.has_bias) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      const void* const pointer = bias.data();
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, pointer);
    }
    make(a_layout, a);
    make(b_layout, b);
    make(d_layout, d);
    cublasLtMatmulPreferenceCreate(&preference);
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{kWorkspace});
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      prefer(attribute, std::uint32_t{2});
  }
  TestProduct(const TestProduct&) = delete;
  TestProduct& operator=(const TestProduct&) = delete;
  ~TestProduct() {
    cublasLtMatmulPreferenceDestroy(preference);
    for (const cublasLtMatrixLayout_t layout : {a_layout, b_layout, d_layout})
      cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulDescDestroy(description);
    cublasLtDestroy(handle);
  }

  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    EXPECT_EQ(cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof value),
              CUBLAS_STATUS_SUCCESS);
  }
  template <class T>
  void prefer(cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
    EXPECT_EQ(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value),
              CUBLAS_STATUS_SUCCESS);
  }
  static void set_batch(cublasLtMatrixLayout_t layout, std::int32_t batch, std::int64_t step) {
    cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch);
    cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step);
  }
  static void make(cublasLtMatrixLayout_t& layout, const TestMatrix& matrix) {
    cublasLtMatrixLayoutCreate(&layout, matrix.type, static_cast<std::uint64_t>(matrix.rows),
                               static_cast<std::uint64_t>(matrix.cols), matrix.leading);
    set_batch(layout, matrix.batch, matrix.step);
  }

  cublasStatus_t choose() {
    int found = 0;
    cublasLtMatmulHeuristicResult_t result{};
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle, description, a_layout, b_layout, d_layout, d_layout, preference, 1, &result, &found);
    algorithm = result.algo;
    return status;
  }
  cublasStatus_t multiply(int from_batch = 0) {
    return cublasLtMatmul(handle, description, &shape.alpha, a.data(from_batch), a_layout, b.data(from_batch),
                          b_layout, &shape.beta, d.data(from_batch), d_layout, d.data(from_batch), d_layout,
                          &algorithm, workspace.data(), workspace_bytes, stream);
  }

  /// With the bound of the error of each element.
  void expect_right() {
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    const std::vector<float> found = d.host();
    for (int i = 0; i < shape.batch; ++i)
      for (int c = 0; c < shape.n; ++c)
        for (int r = 0; r < shape.m; ++r) {
          double sum = 0, size = 0;
          for (int x = 0; x < shape.k; ++x) {
            const double term = (shape.transposes_a ? a.at(i, x, r) : a.at(i, r, x)) *
                                (shape.transposes_b ? b.at(i, c, x) : b.at(i, x, c));
            sum += term;
            size += std::abs(term);
          }
          const double expected = shape.alpha * sum + (shape.beta != 0 ? shape.beta * d.at(i, r, c) : 0) +
                                  (shape.has_bias ? bias.at(0, r, 0) : 0);
          const double bound =
              (shape.k + 4) * 0x1p-23 * (size + 2) + epsilon_of(shape.out) * std::abs(expected);
          ASSERT_NEAR(found[d.index(i, r, c)], expected, bound)
              << "product " << i << " at " << r << ", " << c;
        }
  }

  Shape shape;
  std::mt19937 random;
  TestMatrix a, b, d, bias;
  DeviceArray<unsigned char> workspace;
  std::size_t workspace_bytes = kWorkspace;
  TestStream stream;
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t description = nullptr;
  cublasLtMatrixLayout_t a_layout = nullptr, b_layout = nullptr, d_layout = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
};

class CublasLt : public Emulated {
 protected:
  void expect_right(const Shape& shape) {
    TestProduct product(shape);
    EXPECT_EQ(product.choose(), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(product.multiply(), CUBLAS_STATUS_SUCCESS);
    product.expect_right();
    EXPECT_NO_FINDINGS();
  }
  /// The call fails with a finding that says why.
  void expect_refused(TestProduct& product, const char* why) {
    EXPECT_NE(product.multiply(), CUBLAS_STATUS_SUCCESS);
    EXPECT_FINDING(why);
  }
};

TEST_F(CublasLt, MultipliesAsDoublePrecisionDoes) {
  for (const bool transposes_a : {false, true})
    for (const bool transposes_b : {false, true})
      for (const int gap : {0, 3}) {
        expect_right(
            {.m = 1, .n = 1, .k = 1, .gap = gap, .transposes_a = transposes_a, .transposes_b = transposes_b});
        expect_right({.m = 7,
                      .n = 13,
                      .k = 65,
                      .gap = gap,
                      .transposes_a = transposes_a,
                      .transposes_b = transposes_b});
      }
}

TEST_F(CublasLt, KnowsSixteenBitTypesAndFloatResultsOfThem) {
  for (const cudaDataType in : {CUDA_R_16BF, CUDA_R_16F})
    for (const cudaDataType out : {in, CUDA_R_32F})
      expect_right({.m = 9, .n = 17, .k = 33, .gap = 1, .beta = 1, .in = in, .out = out});
}

/// The only layout of 8-bit factors.
Shape in_8_bits(cudaDataType a, cudaDataType b, cudaDataType out) {
  return {
      .m = 48, .n = 32, .k = 80, .gap = 16, .batch = 2, .transposes_a = true, .in = a, .out = out, .in_b = b};
}

TEST_F(CublasLt, MultipliesEightBitFactorsWithTheirScales) {
  constexpr auto kE4M3 = CUDA_R_8F_E4M3, kE5M2 = CUDA_R_8F_E5M2;
  for (const auto& [a, b] : {std::pair{kE4M3, kE4M3}, {kE4M3, kE5M2}, {kE5M2, kE4M3}})
    for (const cudaDataType out : {CUDA_R_16BF, CUDA_R_32F}) {
      Shape shape = in_8_bits(a, b, out);
      shape.beta = 1;
      shape.has_bias = out == CUDA_R_16BF;
      TestProduct product(shape);
      DeviceArray<float> scales(2);
      const float values[] = {0.5f, 0.125f};
      cudaMemcpy(scales.data(), values, sizeof values, cudaMemcpyHostToDevice);
      const float *const of_a = scales.data(), *const of_b = scales.data() + 1;
      product.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, of_a);
      product.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, of_b);
      product.set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{0});
      EXPECT_EQ(product.choose(), CUBLAS_STATUS_SUCCESS);
      EXPECT_EQ(product.multiply(), CUBLAS_STATUS_SUCCESS);
      product.shape.alpha = values[0] * values[1];  // which the scales are the same as
      product.expect_right();
      EXPECT_NO_FINDINGS();
    }
}

TEST_F(CublasLt, RefusesEightBitFactorsThatTheManualForbids) {
  const auto refuse = [&](Shape shape, const char* why) {
    TestProduct product(shape);
    EXPECT_EQ(product.choose(), CUBLAS_STATUS_NOT_SUPPORTED);
    EXPECT_FINDING(why);
  };
  const Shape good = in_8_bits(CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_16BF);
  Shape shape = good;
  shape.transposes_a = false;
  refuse(shape, "A transposed and B not");
  shape = good;
  shape.transposes_b = true;
  refuse(shape, "A transposed and B not");
  for (int Shape::*const extent : {&Shape::m, &Shape::n, &Shape::k}) {
    shape = good;
    shape.*extent += 8;
    shape.gap = 8;
    refuse(shape, "no multiple of 16");
  }
  shape = good;
  shape.gap = 8;
  refuse(shape, "no multiple of 16 bytes");
  refuse(in_8_bits(CUDA_R_8F_E5M2, CUDA_R_8F_E5M2, CUDA_R_16BF), "not both");
  refuse(in_8_bits(CUDA_R_8F_E4M3, CUDA_R_16BF, CUDA_R_16BF), "one factor has 8 bits");
  refuse(in_8_bits(CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_16F), "must be bf16 or fp32");

  TestProduct fast(good);
  fast.set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{1});
  EXPECT_EQ(fast.choose(), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_FINDING("fewer bits");
  TestProduct moved(good);
  moved.choose();
  moved.a.offset = 8;
  expect_refused(moved, "not at a multiple of 16 bytes");
  TestProduct scaled(good);
  scaled.choose();
  const float host = 1;
  const float* const on_host = &host;
  scaled.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, on_host);
  expect_refused(scaled, "a scale is not in device memory");
  TestProduct wide({.m = 16, .n = 16, .k = 16});
  wide.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, on_host);
  EXPECT_EQ(wide.choose(), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_FINDING("only 8-bit factors have scales");
}

TEST_F(CublasLt, ScalesAccumulatesAndAddsTheBias) {
  expect_right({.m = 6, .n = 4, .k = 5, .alpha = 0.5f, .beta = 2});
  expect_right({.m = 6, .n = 4, .k = 5, .has_bias = true});
  expect_right({.m = 6, .n = 4, .k = 5, .has_bias = true, .beta = 1, .in = CUDA_R_16BF, .out = CUDA_R_16BF});
}

TEST_F(CublasLt, MultipliesBatches) {
  expect_right({.m = 5, .n = 4, .k = 3, .gap = 2, .batch = 3, .has_bias = true, .beta = 1});
  expect_right({.m = 5, .n = 4, .k = 600, .gap = 2, .batch = 3});
}

TEST_F(CublasLt, DoesNotReadCWithoutBeta) {
  TestProduct product({.m = 2, .n = 2, .k = 2});
  const std::vector<unsigned char> nan(product.d.memory.bytes(), 0xff);
  cudaMemcpy(product.d.memory.data(), nan.data(), nan.size(), cudaMemcpyHostToDevice);
  product.choose();
  product.multiply();
  product.expect_right();
}

TEST_F(CublasLt, AProductHasTheSameBitsAloneAndInABatch) {
  for (const int depth : {31, 700}) {
    const Shape shape{.m = 12, .n = 9, .k = depth, .batch = 4, .in = CUDA_R_16BF};
    TestProduct together(shape), alone(shape);
    for (TestProduct* const product : {&together, &alone})
      for (const cublasLtMatrixLayout_t layout : {product->a_layout, product->b_layout, product->d_layout})
        TestProduct::set_batch(layout, 1, 0);
    together.choose();
    alone.choose();
    TestProduct::set_batch(together.a_layout, 4, together.a.step);
    TestProduct::set_batch(together.b_layout, 4, together.b.step);
    TestProduct::set_batch(together.d_layout, 4, together.d.step);
    EXPECT_EQ(together.multiply(), CUBLAS_STATUS_SUCCESS);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(alone.multiply(i), CUBLAS_STATUS_SUCCESS);
    cudaDeviceSynchronize();
    EXPECT_EQ(together.d.memory.host(), alone.d.memory.host());
    EXPECT_NO_FINDINGS();
  }
}

TEST_F(CublasLt, HoldsThePromisedAlignment) {
  TestProduct product({.m = 8, .n = 8, .k = 8});
  product.prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, std::uint32_t{16});
  product.choose();
  product.a.offset = 1;
  expect_refused(product, "A is less aligned");
}

TEST_F(CublasLt, HoldsTheAlignmentOfTheBiasItWasChosenWith) {
  TestProduct product({.m = 8, .n = 8, .k = 8, .has_bias = true});
  product.choose();
  product.bias.offset = 1;
  const void* const moved = product.bias.data();
  product.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, moved);
  expect_refused(product, "the bias is less aligned");
}

TEST_F(CublasLt, RefusesAnAlgorithmOfAnotherShape) {
  TestProduct product({.m = 8, .n = 8, .k = 8}), other({.m = 8, .n = 8, .k = 9});
  other.choose();
  product.algorithm = other.algorithm;
  expect_refused(product, "another shape");
  product.algorithm = {};
  expect_refused(product, "not chosen by the library");
}

TEST_F(CublasLt, RefusesAWorkspaceThatIsTooSmallForTheBatch) {
  TestProduct product({.m = 40, .n = 40, .k = 700, .batch = 2});
  const auto for_one = static_cast<std::uint64_t>(2 * 40 * 40 * 4);
  product.prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, for_one);
  for (const cublasLtMatrixLayout_t layout : {product.a_layout, product.b_layout, product.d_layout})
    TestProduct::set_batch(layout, 1, 0);
  product.choose();
  product.workspace_bytes = for_one;
  TestProduct::set_batch(product.a_layout, 2, product.a.step);
  TestProduct::set_batch(product.b_layout, 2, product.b.step);
  TestProduct::set_batch(product.d_layout, 2, product.d.step);
  expect_refused(product, "workspace is smaller");
}

TEST_F(CublasLt, RefusesShapesThatDoNotFit) {
  TestProduct product({.m = 4, .n = 4, .k = 4});
  product.choose();
  cublasLtMatrixLayout_t wrong = nullptr;
  cublasLtMatrixLayoutCreate(&wrong, CUDA_R_32F, 5, 4, 5);
  std::swap(product.b_layout, wrong);
  expect_refused(product, "inner dimensions");
  std::swap(product.b_layout, wrong);
  cublasLtMatrixLayoutDestroy(wrong);
  cublasLtMatrixLayoutCreate(&wrong, CUDA_R_32F, 4, 4, 3);
  std::swap(product.a_layout, wrong);
  expect_refused(product, "leading dimension");
  std::swap(product.a_layout, wrong);
  cublasLtMatrixLayoutDestroy(wrong);
}

TEST_F(CublasLt, RefusesTypesThatTheManualDoesNotList) {
  TestProduct product({.m = 4, .n = 4, .k = 4, .in = CUDA_R_16BF, .out = CUDA_R_16F});
  EXPECT_EQ(product.choose(), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_FINDING("D must have");
}

TEST_F(CublasLt, RefusesMemoryThatIsNotTheDevices) {
  TestProduct product({.m = 4, .n = 4, .k = 4});
  product.choose();
  std::vector<float> host(16);
  const float one = 1, zero = 0;
  EXPECT_NE(cublasLtMatmul(product.handle, product.description, &one, host.data(), product.a_layout,
                           product.b.data(), product.b_layout, &zero, product.d.data(), product.d_layout,
                           product.d.data(), product.d_layout, &product.algorithm, product.workspace.data(),
                           kWorkspace, product.stream),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_FINDING("A is not in device memory");
}

TEST_F(CublasLt, LeavesNothingUsefulInTheWorkspace) {
  TestProduct product({.m = 4, .n = 4, .k = 4});
  product.choose();
  product.multiply();
  cudaDeviceSynchronize();
  EXPECT_EQ(product.workspace.data()[0], 0xff);
}

TEST_F(CublasLt, TwoStreamsWithOneWorkspaceAreFound) {
  TestProduct first({.m = 4, .n = 4, .k = 4}), second({.m = 4, .n = 4, .k = 4});
  first.choose();
  second.choose();
  first.multiply();
  const float one = 1, zero = 0;
  cublasLtMatmul(second.handle, second.description, &one, second.a.data(), second.a_layout, second.b.data(),
                 second.b_layout, &zero, second.d.data(), second.d_layout, second.d.data(), second.d_layout,
                 &second.algorithm, first.workspace.data(), kWorkspace, second.stream);
  cudaDeviceSynchronize();
  EXPECT_FINDING("race between streams");
}

TEST_F(CublasLt, FailsWhenItIsToldTo) {
  TestProduct product({.m = 4, .n = 4, .k = 4});
  product.choose();
  config.failure = {"cublasLtMatmul", 1};
  EXPECT_EQ(product.multiply(), CUBLAS_STATUS_EXECUTION_FAILED);
  EXPECT_EQ(product.multiply(), CUBLAS_STATUS_SUCCESS);
  EXPECT_STREQ(cublasLtGetStatusName(CUBLAS_STATUS_EXECUTION_FAILED), "CUBLAS_STATUS_EXECUTION_FAILED");
}

}  // namespace
}  // namespace emu::testing
