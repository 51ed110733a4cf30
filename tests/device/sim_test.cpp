// The counting device: same bytes as the device it imitates, FLOPs by the formula, no address followed.
#include <gtest/gtest.h>

#include <set>

#include "cartan/core/error.hpp"
#include "cartan/device/device.hpp"
#include "device/cuda/scratch_bytes.hpp"

namespace cartan::device {
namespace {

ConstMatrix fake(Index rows, Index cols) {
  return {reinterpret_cast<void*>(64), DType::bf16, rows, cols, cols};
}
Matrix fake_out(Index rows, Index cols) {
  return {reinterpret_cast<void*>(64), DType::bf16, rows, cols, cols};
}

TEST(SimDevice, CountsMatrixProducts) {
  const auto sim = make_sim_device(DeviceKind::cpu, {.threads = 2});
  const SequenceShape shape{2, 5};
  Stream& stream = sim->compute_stream();
  sim->ops().linear_forward(fake(10, 7), fake(3, 7), {}, fake_out(10, 3), false, shape, stream);
  EXPECT_EQ(sim->counts().matmul_flops, 2.0 * 10 * 7 * 3);
  sim->ops().linear_backward_input(fake(10, 3), fake(3, 7), fake_out(10, 7), true, shape, stream);
  const FoldPlan plan{0, 1, 2, {0, 1}};
  float* slot = nullptr;
  sim->ops().linear_backward_weight(fake(10, 3), fake(10, 7), shape, {{&slot, 1}, 0, &plan}, {}, stream);
  EXPECT_EQ(sim->counts().matmul_flops, 3 * 2.0 * 10 * 7 * 3);
  EXPECT_EQ(sim->counts().attention_flops, 0.0);
}

TEST(SimDevice, CountsTheCausalHalfOfAttention) {
  const auto sim = make_sim_device(DeviceKind::cpu, {.threads = 2});
  const AttentionShape shape{2, 4, 4, 6, 3, 8, 1.0f};
  const std::vector<std::int32_t> starts(8, 0);
  const Vector lse{reinterpret_cast<void*>(64), DType::f32, 48};
  sim->ops().attention_forward(shape, fake(8, 48), fake(8, 24), fake(8, 24), starts, fake_out(8, 48), lse,
                               sim->compute_stream());
  const double pairs = 2 * 6 * (1 + 2 + 3 + 4);
  EXPECT_EQ(sim->counts().attention_flops, 2 * 2 * pairs * 8);
  sim->ops().attention_backward(shape, fake(8, 48), fake(8, 24), fake(8, 24), fake(8, 48), lse, starts,
                                fake(8, 48), fake_out(8, 48), false, fake_out(8, 24), fake_out(8, 24), false,
                                sim->compute_stream());
  EXPECT_EQ(sim->counts().attention_flops, (2 + 5) * 2 * pairs * 8);
}

TEST(SimDevice, CountsThePairsOfAnyTwoRuns) {
  const std::vector<std::int32_t> starts(64, 0);
  for (const Index q_first : {0, 1, 4, 9}) {
    for (const Index k_first : {0, 3, 4, 11}) {
      for (const Index q_length : {0, 1, 6}) {
        for (const Index k_length : {0, 1, 5}) {
          double pairs = 0;
          for (Index p = q_first; p < q_first + q_length; ++p) {
            for (Index key = k_first; key < k_first + k_length; ++key) pairs += key <= p ? 1 : 0;
          }
          const auto sim = make_sim_device(DeviceKind::cpu, {.threads = 1});
          const AttentionShape shape{2, q_length, k_length, 6, 3, 8, 1.0f, q_first, k_first};
          const Index q_rows = 2 * q_length, k_rows = 2 * k_length;
          sim->ops().attention_forward(shape, fake(q_rows, 48), fake(k_rows, 24), fake(k_rows, 24),
                                       std::span(starts).first(static_cast<std::size_t>(q_rows)),
                                       fake_out(q_rows, 48), {}, sim->compute_stream());
          EXPECT_EQ(sim->counts().attention_flops, 4 * 2 * 6 * 8 * pairs)
              << q_length << " from " << q_first << ", " << k_length << " from " << k_first;
        }
      }
    }
  }
}

TEST(SimDevice, BooksTheBytesOfTheCpuDevice) {
  for (const int threads : {1, 3}) {
    const auto sim = make_sim_device(DeviceKind::cpu, {.threads = threads});
    const auto cpu = make_device(DeviceKind::cpu, {.threads = threads});
    for (Device* device : {static_cast<Device*>(sim.get()), cpu.get()}) {
      const Buffer buffer = device->allocate(1000, MemoryKind::parameters, "weights");
    }
    EXPECT_EQ(sim->ledger().peak().bytes, cpu->ledger().peak().bytes);
  }
}

TEST(SimDevice, GivesDistinctAddressesWithoutMemory) {
  const auto device = make_device(DeviceKind::sim, {.threads = 1});
  EXPECT_EQ(device->kind(), DeviceKind::sim);
  std::set<void*> addresses;
  for (int i = 0; i < 100; ++i) {
    const Buffer petabyte = device->allocate(std::size_t{1} << 50, MemoryKind::parameters, "a petabyte");
    EXPECT_TRUE(addresses.insert(petabyte.data()).second);
  }
  EXPECT_EQ(device->ledger().current().of(MemoryKind::parameters), 0u);
  EXPECT_EQ(device->ledger().peak().of(MemoryKind::parameters), std::size_t{1} << 50);
}

TEST(SimDevice, AnswersZerosWhereTheHostReads) {
  const auto sim = make_sim_device(DeviceKind::cuda, {.threads = 1});
  EXPECT_EQ(sim->ledger().current().total(), cuda::kDeviceScratchBytes);
  std::vector<float> host(3, 1.0f);
  sim->copy_out(host.data(), reinterpret_cast<void*>(64), 3 * sizeof(float), sim->compute_stream());
  EXPECT_EQ(host, std::vector<float>(3, 0.0f));
  std::vector<double> sums(2, 1.0);
  sim->ops().square_sums({reinterpret_cast<void*>(64), DType::f32, kSumBlock + 1}, sums,
                         sim->compute_stream());
  EXPECT_EQ(sums, std::vector<double>(2, 0.0));
}

TEST(SimDevice, RefusesShapesThatDoNotFit) {
  const auto sim = make_sim_device(DeviceKind::cpu, {.threads = 1});
  Stream& stream = sim->compute_stream();
  EXPECT_THROW(sim->ops().linear_forward(fake(10, 7), fake(3, 8), {}, fake_out(10, 3), false, {2, 5}, stream),
               InternalError);
  EXPECT_THROW(sim->ops().linear_forward(fake(10, 7), fake(3, 7), {}, fake_out(10, 3), false, {2, 6}, stream),
               InternalError);
  EXPECT_THROW(sim->ops().swiglu_forward(fake(4, 7), fake_out(4, 4), stream), InternalError);
}

}  // namespace
}  // namespace cartan::device
