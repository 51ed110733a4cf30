// A tiny model with odd sizes, its batches, and what a few steps of it give on a mesh.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "cartan/core/narrow.hpp"
#include "cartan/core/random.hpp"
#include "cartan/train/engine.hpp"
#include "support/golden.hpp"
#include "support/mpi_session.hpp"
#include "support/test_device.hpp"

namespace cartan::train {

inline constexpr Index kGlobal = 12, kSeq = 19;  // a config may have another length
inline constexpr int kSteps = 3;

/// Odd sizes everywhere: 3 layers, 6 heads in 2 groups, vocabulary 61, ffn 37.
inline Config odd_config(bool tied) {
  Config config;
  config.model.hidden = 42;
  config.model.layers = 3;
  config.model.heads = 6;
  config.model.kv_heads = 2;
  config.model.head_dim = 10;
  config.model.ffn = 37;
  config.model.vocab = 61;
  config.model.tied = tied;
  config.model.qkv_bias = !tied;
  config.model.qk_norm = tied;
  config.data.seq = kSeq;
  config.batch.global = kGlobal;
  config.optim.clip = 0.5;
  config.optim.lr = 1e-2;
  return config;
}

/// Leaves of step `step`: random tokens, two documents in each sequence, a ragged mask; sequence `silent`
/// has no target at all.
inline data::MicroBatch make_batch(int step, Index first, Index count, Index seq = kSeq, Index silent = 5) {
  data::MicroBatch micro;
  micro.first_leaf = first;
  data::Batch& b = micro.batch;
  b.sequences = count;
  b.seq = seq;
  const RandomStream random(99, static_cast<std::uint64_t>(step));
  for (Index s = first; s < first + count; ++s) {
    const Index cut = s % seq;
    for (Index t = 0; t < seq; ++t) {
      const auto at = static_cast<std::uint64_t>(s * seq + t);
      const Index start = t < cut ? 0 : cut;
      b.tokens.push_back(static_cast<std::int32_t>(random.bits(2 * at) % 61));
      const bool masked = s == silent || t + 1 == cut || random.bits(2 * at + 1) % 4 == 0;
      b.targets.push_back(masked ? data::kIgnoredTarget
                                 : static_cast<std::int32_t>(random.bits(7000 + at) % 61));
      b.positions.push_back(narrow<std::int32_t>(t - start));
      b.document_start.push_back(narrow<std::int32_t>(start));
    }
  }
  return micro;
}

struct Outcome {
  std::vector<double> numbers;  ///< loss and norm of each step
  std::map<std::string, std::vector<float>> parameters;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

inline Outcome run(Config config, Index micro, double bucket_mb, int threads, comm::Mesh& mesh, bool overlap,
                   int steps = kSteps) {
  config.batch.micro = micro;
  config.zero.bucket_mb = bucket_mb;
  config.mesh = mesh.shape();
  config.run.threads = threads;
  config.run.device = cartan::testing::test_device_name();
  const auto device = cartan::testing::make_test_device(threads);
  Engine engine(config, *device, mesh, overlap);
  engine.state().initialise(config.model, 7);
  Outcome outcome;
  for (int step = 0; step < steps; ++step) {
    Index next = 0;
    const StepResult result = engine.train_step(step + 1, config.optim.lr, [&](data::MicroBatch& batch) {
      const LeafRange leaves = engine.share().of(next++);
      batch = make_batch(step, leaves.begin, leaves.end - leaves.begin, config.data.seq,
                         config.batch.global > 5 ? 5 : 1);
    });
    outcome.numbers.insert(outcome.numbers.end(), {result.loss, result.grad_norm});
  }
  EXPECT_EQ(predict_memory(config, mesh.world().rank()).bytes, device->ledger().peak().bytes)
      << "predicted memory of " << comm::to_string(config.mesh) << ", ZeRO " << config.zero.stage;
  outcome.parameters = testing::gather_tensors(
      config.model, testing::master_values(engine.state(), &shard::GradientPart::alone), mesh.world());
  return outcome;
}

inline void expect_same_bits(const Outcome& found, const Outcome& expected, const std::string& where) {
  EXPECT_EQ(found.numbers, expected.numbers) << where;
  EXPECT_TRUE(found.parameters == expected.parameters) << where;
}

/// Equal up to rounding: sums are split over ranks. In bf16 gradients that would be zero are noise, which
/// AdamW makes as large as any step; there only the losses, and the first norm, are compared.
inline void expect_near(const Outcome& found, const Outcome& expected, const std::string& dtype,
                        const std::string& where) {
  const bool exact = dtype == "fp32";
  for (std::size_t i = 0; i < expected.numbers.size(); ++i) {
    if (!exact && i % 2 == 1 && i != 1) continue;
    EXPECT_NEAR(found.numbers[i] / expected.numbers[i], 1.0, exact ? 1e-5 : 2e-2)
        << where << ", number " << i;
  }
  if (!exact) return;
  for (const auto& [name, values] : expected.parameters) {
    const testing::Distance d = testing::distance(found.parameters.at(name), values);
    // Keys' biases move all scores of a row nearly alike, which softmax does not see: their gradients are
    // mostly rounding. B of an adapter begins at zero and is as small as a few steps.
    const double tolerance = name.ends_with("k_proj.bias") || name.ends_with("lora_B.weight") ? 2e-4 : 1e-5;
    EXPECT_LT(d.difference, tolerance * d.norm) << where << ", " << name;
  }
}

}  // namespace cartan::train
