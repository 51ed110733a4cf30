// Attention gradients in pieces, where the statistics of all rows do not fit the scratch memory of a kernel:
// the same bits as at once.
#include <gtest/gtest.h>

#include "device/cuda/stream.hpp"
#include "device/ops_fixture.hpp"
#include "kernels/attention.hpp"

namespace cartan::device {
namespace {

using testing::Data;
using testing::random_values;

TEST(AttentionScratch, MayBeSmall) {
  if (testing::on_cpu()) GTEST_SKIP() << "of the kernels on a GPU";
  Stream& stream = testing::device().compute_stream();
  for (const DType dtype : testing::kComputeTypes) {
    // 70 queries of 2 heads for each of 2 kv heads of 2 sequences.
    const AttentionShape shape{2, 70, 70, 4, 2, 16, 0.25f, 0, 0};
    const Index tokens = 140, q_cols = 64, kv_cols = 32;
    Data q(dtype, random_values(tokens * q_cols, "q")), dout(dtype, random_values(tokens * q_cols, "dout"));
    Data k(dtype, random_values(tokens * kv_cols, "k")), v(dtype, random_values(tokens * kv_cols, "v"));
    Data out(dtype, tokens * q_cols), lse(DType::f32, tokens * 4);
    const testing::Ints starts(std::vector<std::int32_t>(static_cast<std::size_t>(tokens), 0));
    testing::device().ops().attention_forward(shape, q.matrix(q_cols), k.matrix(kv_cols), v.matrix(kv_cols),
                                              starts, out.matrix(q_cols), lse.vector(), stream);
    const Data before_q(DType::f32, random_values(tokens * q_cols, "dq"));
    const Data before_k(DType::f32, random_values(tokens * kv_cols, "dk"));
    Data first_q = before_q, first_k = before_k, first_v = before_k;
    // All; a sequence; a head; 48 and then 22 queries.
    for (const Index floats : {560, 300, 150, 100}) {
      Data scratch(DType::f32, floats), dq = before_q, dk = before_k, dv = before_k;
      kernels::attention_backward(shape, q.matrix(q_cols), k.matrix(kv_cols), v.matrix(kv_cols),
                                  out.matrix(q_cols), lse.vector(), starts, dout.matrix(q_cols),
                                  dq.matrix(q_cols), true, dk.matrix(kv_cols), dv.matrix(kv_cols), true,
                                  {scratch.floats(), static_cast<std::size_t>(floats) * sizeof(float)},
                                  cuda::cuda_stream(stream).native());
      stream.synchronize();
      if (floats == 560) {
        first_q.set(dq.values());
        first_k.set(dk.values());
        first_v.set(dv.values());
        EXPECT_FALSE(dq.same_bits(before_q) || dk.same_bits(before_k) || dv.same_bits(before_k));
      }
      EXPECT_TRUE(dq.same_bits(first_q)) << name_of(dtype) << ", " << floats;
      EXPECT_TRUE(dk.same_bits(first_k)) << name_of(dtype) << ", " << floats;
      EXPECT_TRUE(dv.same_bits(first_v)) << name_of(dtype) << ", " << floats;
    }
  }
}

}  // namespace
}  // namespace cartan::device
