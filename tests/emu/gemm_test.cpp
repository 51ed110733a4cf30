// The matrix products of the cuda device on the stand-in for cuBLASLt, where they are not those of a linear
// layer.
#include "device/cuda/gemm.hpp"

#include <gmock/gmock.h>

#include "emu/emu_fixture.hpp"

namespace emu::testing {
namespace {

using cartan::DType;
using cartan::Index;
using cartan::device::ConstMatrix;
using cartan::device::Matrix;
using cartan::device::cuda::Gemm;
using cartan::device::cuda::Product;
using cartan::kernels::Scratch;

std::vector<float> numbers(std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i * 37 % 101) / 7.0f;
  return values;
}

class Products : public Emulated {
 protected:
  static constexpr Index kRows = 6, kCols = 10, kDepth = 700, kBatch = 5;

  /// left[b] right^T of all batches, with so much workspace.
  std::vector<float> multiplied(std::size_t workspace_bytes) {
    DeviceArray<unsigned char> workspace(workspace_bytes);
    Gemm gemm;
    Product product;
    product.left = ConstMatrix{left_.data(), DType::f32, kRows, kDepth, kDepth};
    product.right = ConstMatrix{right_.data(), DType::f32, kCols, kDepth, kDepth};
    product.out = Matrix{out_.data(), DType::f32, kRows, kCols, kCols};
    product.transposes_right = true;
    product.batch = kBatch;
    product.left_step = kRows * kDepth;
    product.out_step = kRows * kCols;
    gemm.multiply(product, Scratch{workspace.data(), workspace_bytes}, stream_);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    return out_.host();
  }

  DeviceArray<float> left_{numbers(kBatch * kRows * kDepth)}, right_{numbers(kCols * kDepth)},
      out_{kBatch * kRows * kCols};
  TestStream stream_;
};

TEST_F(Products, HaveTheSameBitsWhereTheWorkspaceHasNoRoomForABatch) {
  // The library's choice for one product takes two partial sums.
  const std::size_t for_one = 2 * kRows * kCols * sizeof(float);
  const std::vector<float> one_by_one = multiplied(for_one), together = multiplied(for_one * kBatch);
  EXPECT_EQ(one_by_one, together);
  EXPECT_NO_FINDINGS();
}

TEST_F(Products, TakeABiasAtAnyAddress) {
  DeviceArray<float> bias(numbers(kCols + 1));
  DeviceArray<unsigned char> workspace(4096);
  Gemm gemm;
  for (const int first : {0, 1}) {
    Product product;
    product.left = ConstMatrix{left_.data(), DType::f32, kRows, kDepth, kDepth};
    product.right = ConstMatrix{right_.data(), DType::f32, kCols, kDepth, kDepth};
    product.out = Matrix{out_.data(), DType::f32, kRows, kCols, kCols};
    product.bias = {bias.data() + first, DType::f32, kCols};
    product.transposes_right = true;
    gemm.multiply(product, Scratch{workspace.data(), 4096}, stream_);
  }
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_NO_FINDINGS();
}

}  // namespace
}  // namespace emu::testing
