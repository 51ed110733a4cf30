// One training step, however it is cut into ranks, micro-batches, buckets and threads, gives the same bits.
#include "cartan/train/engine.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cartan/core/narrow.hpp"
#include "cartan/core/random.hpp"
#include "support/golden.hpp"
#include "support/mpi_session.hpp"

namespace cartan::train {
namespace {

constexpr Index kGlobal = 12, kSeq = 19;  // a config may have another length
constexpr int kSteps = 3;

/// Odd sizes everywhere: 3 layers, 6 heads in 2 groups, vocabulary 61, ffn 37.
Config odd_config(bool tied) {
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
  return config;
}

/// Leaves of step `step`: random tokens, two documents in each sequence, a ragged mask; sequence 5 has no
/// target at all.
data::MicroBatch make_batch(int step, Index first, Index count, Index seq = kSeq) {
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
      const bool masked = s == 5 || t + 1 == cut || random.bits(2 * at + 1) % 4 == 0;
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

Outcome run(Config config, Index micro, double bucket_mb, int threads, comm::Mesh& mesh, bool overlap) {
  config.batch.micro = micro;
  config.zero.bucket_mb = bucket_mb;
  config.mesh = mesh.shape();
  config.run.threads = threads;
  const auto device = device::make_device(device::DeviceKind::cpu, {threads});
  Engine engine(config, *device, mesh, overlap);
  engine.state().initialise(config.model, 7);
  Outcome outcome;
  for (int step = 0; step < kSteps; ++step) {
    Index next = 0;
    const StepResult result = engine.train_step(step + 1, 1e-2, [&](data::MicroBatch& batch) {
      const LeafRange leaves = engine.share().of(next++);
      batch = make_batch(step, leaves.begin, leaves.end - leaves.begin, config.data.seq);
    });
    outcome.numbers.insert(outcome.numbers.end(), {result.loss, result.grad_norm});
  }
  EXPECT_EQ(predict_memory(config, mesh.world().rank()).bytes, device->ledger().peak().bytes)
      << "predicted memory of " << comm::to_string(config.mesh) << ", ZeRO " << config.zero.stage;
  outcome.parameters = testing::gather_tensors(
      config.model, testing::master_values(engine.state(), &shard::GradientPart::alone), mesh.world());
  return outcome;
}

class EngineBits : public ::testing::TestWithParam<std::tuple<bool, std::string>> {};

TEST_P(EngineBits, DoNotDependOnRanksMicroBatchesBucketsOrThreads) {
  Config config = odd_config(std::get<0>(GetParam()));
  config.precision.compute = std::get<1>(GetParam());
  comm::Session& session = testing::session();
  comm::Mesh mesh(session, comm::MeshShape{1, session.world_size(), 1, 1});
  comm::Mesh alone = comm::Mesh::alone();
  const Outcome one = run(config, 1, 1.0, 1, alone, false);
  for (const double number : one.numbers) EXPECT_TRUE(std::isfinite(number));
  EXPECT_NE(one.numbers[0], one.numbers[2]) << "the parameters do not move";

  EXPECT_TRUE(run(config, 12, 1.0, 2, alone, false) == one) << "whole batch at once, two threads";
  EXPECT_TRUE(run(config, 5, 1.0, 3, alone, false) == one) << "micro-batches of 5, 5 and 2, three threads";
  for (const Index micro : {1, 2, 3, 4}) {
    for (const double bucket_mb : {0.001, 0.02, 50.0}) {
      const Outcome parallel = run(config, micro, bucket_mb, 1 + static_cast<int>(micro % 2), mesh,
                                   session.thread_multiple() && micro != 3);
      EXPECT_EQ(parallel.numbers, one.numbers)
          << "micro-batch " << micro << ", buckets of " << bucket_mb << " MiB";
      EXPECT_TRUE(parallel.parameters == one.parameters)
          << "micro-batch " << micro << ", buckets of " << bucket_mb << " MiB";
    }
  }
}
TEST_P(EngineBits, DoNotDependOnZeroStageOrShards) {
  Config config = odd_config(std::get<0>(GetParam()));
  config.precision.compute = std::get<1>(GetParam());
  comm::Session& session = testing::session();
  comm::Mesh mesh(session, comm::MeshShape{1, session.world_size(), 1, 1});
  comm::Mesh alone = comm::Mesh::alone();
  const Outcome one = run(config, 1, 1.0, 1, alone, false);
  for (const int stage : {1, 2, 3})
    for (const int shard : {0, 2}) {
      if (shard != 0 && session.world_size() % shard != 0) continue;
      for (const Index micro : {1, 2, 3}) {
        if (kGlobal % (micro * session.world_size()) != 0) continue;
        config.zero.stage = stage;
        config.zero.shard = shard;
        config.zero.prefetch = static_cast<int>(micro);
        const Outcome parallel = run(config, micro, 1.0, 1, mesh, session.thread_multiple() && micro != 2);
        EXPECT_EQ(parallel.numbers, one.numbers)
            << "stage " << stage << ", shards of " << shard << ", micro " << micro;
        EXPECT_TRUE(parallel.parameters == one.parameters)
            << "stage " << stage << ", shards of " << shard << ", micro " << micro;
      }
    }
}

TEST_P(EngineBits, DoNotDependOnPipelineStagesOrSchedules) {
  comm::Session& session = testing::session();
  if (session.world_size() == 1 || !session.thread_multiple()) GTEST_SKIP() << "a pipeline needs two ranks";
  Config config = odd_config(std::get<0>(GetParam()));
  config.precision.compute = std::get<1>(GetParam());
  comm::Mesh alone = comm::Mesh::alone();
  const Outcome one = run(config, 1, 1.0, 1, alone, false);
  for (const int stages : {2, 3, 4}) {
    if (session.world_size() % stages != 0) continue;
    comm::Mesh mesh(session, comm::MeshShape{stages, session.world_size() / stages, 1, 1});
    for (const char* schedule : {"gpipe", "1f1b", "zero-bubble", "interleaved"})
      for (const int stage : {0, 2, 3}) {
        config.pipeline.schedule = schedule;
        config.pipeline.chunks = std::string(schedule) == "interleaved" && stages == 2 ? 2 : 1;
        if (std::string(schedule) == "interleaved" && config.pipeline.chunks == 1) continue;
        config.zero.stage = stage;
        const Outcome parallel = run(config, 1, 1.0, 1, mesh, true);
        EXPECT_EQ(parallel.numbers, one.numbers) << schedule << " of " << stages << " stages, ZeRO " << stage;
        EXPECT_TRUE(parallel.parameters == one.parameters)
            << schedule << " of " << stages << " stages, ZeRO " << stage;
      }
  }
}

/// Equal up to rounding: sums are split over ranks. In bf16 gradients that would be zero are noise, which
/// AdamW makes as large as any step; there only the losses, and the first norm, are compared.
void expect_near(const Outcome& found, const Outcome& expected, const std::string& dtype,
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
    EXPECT_LT(d.difference, 2e-4 * d.norm) << where << ", " << name;
  }
}

/// Every mesh of so many ranks whose tp, cp and pp the odd model allows.
std::vector<comm::MeshShape> meshes_of(int ranks) {
  std::vector<comm::MeshShape> meshes;
  for (const int pp : {1, 2, 3})
    for (const int cp : {1, 2, 3})
      for (const int tp : {1, 2, 6})
        if (ranks % (pp * cp * tp) == 0 && pp * cp * tp > 1)
          meshes.push_back({pp, ranks / (pp * cp * tp), cp, tp});
  // And grids, alone and with each other axis.
  for (const auto& [rows, columns] : {std::pair{2, 1}, {2, 2}, {3, 2}, {2, 3}, {2, 6}, {3, 1}})
    for (const auto& [pp, cp] : {std::pair{1, 1}, {2, 1}, {1, 2}, {3, 1}})
      if (ranks % (pp * cp * rows * columns) == 0)
        meshes.push_back({pp, ranks / (pp * cp * rows * columns), cp, rows * columns,
                          fmt::format("{}x{}", rows, columns)});
  return meshes;
}

TEST_P(EngineBits, AreThoseOfOneRankUpToRoundingOnAnyMesh) {
  comm::Session& session = testing::session();
  if (!session.thread_multiple()) GTEST_SKIP() << "needs MPI_THREAD_MULTIPLE";
  Config config = odd_config(std::get<0>(GetParam()));
  config.precision.compute = std::get<1>(GetParam());
  config.data.seq = 36;
  comm::Mesh alone = comm::Mesh::alone();
  const Outcome one = run(config, 2, 1.0, 1, alone, false);
  int turn = 0;
  for (const comm::MeshShape& shape : meshes_of(session.world_size())) {
    comm::Mesh mesh(session, shape);
    for (const char* exchange : {"ring", "all-gather", "all-to-all"}) {
      if (mesh.shape().context() == 1 && std::string(exchange) != "ring") continue;
      config.context.exchange = exchange;
      if (config.model.kv_heads % mesh.shape().columns() != 0 &&
          mesh.shape().columns() % config.model.kv_heads != 0)
        continue;
      if (!model::why_not(config.model, config.data.seq, mesh.shape().context(), mesh.shape().columns(),
                          model::context_exchange_from_name(exchange))
               .empty())
        continue;
      // What goes with which mesh changes from mesh to mesh.
      config.zero.stage = turn % 4;
      config.pipeline.schedule = turn % 3 == 0 ? "1f1b" : turn % 3 == 1 ? "zero-bubble" : "gpipe";
      config.zero.offload = turn % 4 == 2 ? "states" : turn % 4 == 3 ? "all" : "none";
      config.recompute.policy = turn % 5 == 1 ? "block" : turn % 5 == 3 ? "attention" : "none";
      config.tensor.chunks = 1 + turn % 4;
      ++turn;
      const Index micro = kGlobal % (2 * shape.dp) == 0 ? 2 : 1;
      expect_near(run(config, micro, 1.0, 1, mesh, true), one, config.precision.compute,
                  fmt::format("{}, {}, ZeRO {}, {}, recompute {}, {} chunks", comm::to_string(mesh.shape()),
                              exchange, config.zero.stage, config.pipeline.schedule, config.recompute.policy,
                              config.tensor.chunks));
    }
  }
}

TEST_P(EngineBits, DoNotDependOnFusedUpdatesOrRecomputation) {
  Config config = odd_config(std::get<0>(GetParam()));
  config.precision.compute = std::get<1>(GetParam());
  config.optim.clip = 0;
  comm::Mesh alone = comm::Mesh::alone();
  config.optim.fused = "never";
  const Outcome one = run(config, kGlobal, 1.0, 1, alone, false);
  config.optim.fused = "auto";
  EXPECT_TRUE(run(config, kGlobal, 1.0, 2, alone, false) == one) << "units updated during the backward pass";
  config.recompute = {"mlp", 2};
  EXPECT_TRUE(run(config, kGlobal, 1.0, 1, alone, false) == one) << "and two layers recomputed";
  for (const char* policy : {"mlp", "attention", "block"}) {
    config.recompute = {policy, 0};
    EXPECT_TRUE(run(config, 5, 1.0, 1, alone, false) == one) << policy << " recomputed, with accumulation";
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EngineBits,
                         ::testing::Combine(::testing::Bool(), ::testing::Values("fp32", "bf16")),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param) ? "tied_" : "untied_") +
                                  std::get<1>(test.param);
                         });

TEST(EngineFp16, FollowsFp32AndSkipsWhatOverflows) {
  comm::Session& session = testing::session();
  comm::Mesh mesh(session, comm::MeshShape{1, session.world_size(), 1, 1});
  Config config = odd_config(true);
  if (kGlobal % session.world_size() != 0) GTEST_SKIP() << "the batch does not divide";
  const Outcome exact = run(config, 1, 1.0, 1, mesh, session.thread_multiple());
  config.precision.compute = "fp16";
  const Outcome half = run(config, 1, 1.0, 1, mesh, session.thread_multiple());
  expect_near(half, exact, "fp16", "fp16");

  // A scale at which gradients overflow is halved until they do not; nothing is updated meanwhile.
  config.precision.loss_scale_power = 40;
  config.precision.loss_scale_hysteresis = 1;
  config.batch.micro = 1;
  config.mesh = mesh.shape();
  const auto device = device::make_device(device::DeviceKind::cpu, {1});
  Engine engine(config, *device, mesh, session.thread_multiple());
  engine.state().initialise(config.model, 7);
  const auto start = testing::master_values(engine.state());
  double scale = std::exp2(41);
  int skipped = 0;
  for (bool applied = false; !applied; ++skipped) {
    EXPECT_TRUE(testing::master_values(engine.state()) == start);
    Index next = 0;
    const StepResult result = engine.train_step(1, 1e-2, [&](data::MicroBatch& batch) {
      const LeafRange leaves = engine.share().of(next++);
      batch = make_batch(0, leaves.begin, leaves.end - leaves.begin);
    });
    EXPECT_EQ(result.loss_scale, scale / 2);
    scale = result.loss_scale;
    applied = result.applied;
    ASSERT_LT(skipped, 40);
  }
  EXPECT_GT(skipped, 3);
  EXPECT_FALSE(testing::master_values(engine.state()) == start);
}

TEST(Engine, FusedUpdatesAndRecomputationSaveMemory) {
  Config config = odd_config(true);
  config.batch.micro = kGlobal;
  config.mesh.dp = 1;
  config.run.threads = 1;
  config.optim.clip = 0;
  const auto of = [&](device::MemoryKind kind) { return predict_memory(config, 0).of(kind); };
  const std::size_t fused = of(device::MemoryKind::gradients), kept = of(device::MemoryKind::activations);
  config.optim.fused = "never";
  config.recompute.policy = "mlp";
  EXPECT_LT(2 * fused, of(device::MemoryKind::gradients));
  EXPECT_LT(of(device::MemoryKind::activations), kept);
  config.precision.compute = "bf16";
  const std::size_t copied = of(device::MemoryKind::parameters);
  EXPECT_GT(copied, 0u);
  config.optim.fused = "auto";
  EXPECT_EQ(of(device::MemoryKind::parameters), 0u) << "no copy of all parameters";
  EXPECT_LT(of(device::MemoryKind::gathered), copied);
}

TEST(Engine, AGridOfTensorParallelismDividesWeightsAndActivationsByAllItsRanks) {
  Config config = odd_config(false);
  config.model.vocab = 512;  // large enough for the blocks that units are cut into
  config.model.hidden = 256;
  config.model.ffn = 768;
  config.model.heads = config.model.kv_heads = 8;
  config.model.head_dim = 32;
  config.model.layers = 8;
  config.data.seq = 256;
  config.batch.global = 1;
  config.batch.micro = 1;
  config.run.threads = 1;
  config.recompute.policy = "block";  // kept: the residual stream between layers
  config.mesh = {1, 1, 1, 1};
  const auto bytes = [&](device::MemoryKind kind) {
    return static_cast<double>(predict_memory(config, 0).of(kind));
  };
  using Kind = device::MemoryKind;
  const double parameters = bytes(Kind::parameters), moments = bytes(Kind::moments),
               activations = bytes(Kind::activations);
  for (const char* grid : {"2x2", "4x1", "2x4", "4x2"}) {
    config.mesh = {1, 1, 1, 1, grid};
    config.mesh.tp = grid == std::string("2x2") || grid == std::string("4x1") ? 4 : 8;
    config.mesh = comm::resolve_mesh(config.mesh, config.mesh.tp);
    const double ranks = config.mesh.tp;
    // Norms are whole in each column, and owners get whole blocks of elements.
    EXPECT_NEAR(bytes(Kind::parameters) * ranks / parameters, 1.0, 0.1) << grid;
    EXPECT_NEAR(bytes(Kind::moments) * ranks / moments, 1.0, 0.1) << grid;
    EXPECT_LT(bytes(Kind::activations) * ranks / activations, 1.6) << grid;
  }
}

TEST(Engine, PredictsTheBytesItAllocates) {
  for (const bool tied : {false, true}) {
    for (const Index micro : {1, 3}) {
      Config config = odd_config(tied);
      if (tied && kGlobal % (micro * testing::session().world_size()) == 0)
        config.zero.stage = static_cast<int>(micro);
      config.batch.micro = micro;
      config.run.threads = 2;
      comm::Session& session = testing::session();
      comm::Mesh mesh(session, comm::MeshShape{1, session.world_size(), 1, 1});
      config.mesh = mesh.shape();
      const auto device = device::make_device(device::DeviceKind::cpu, {2});
      const Engine engine(config, *device, mesh, false);
      EXPECT_EQ(predict_memory(config, session.rank()).bytes, device->ledger().peak().bytes)
          << "tied " << tied << ", micro-batch " << micro;
    }
    Config config = odd_config(tied);  // units that are updated, and cast, one after another
    config.batch.micro = kGlobal;
    config.optim.clip = 0;
    config.precision.compute = "bf16";
    config.run.threads = 1;
    config.mesh.dp = 1;
    comm::Mesh alone = comm::Mesh::alone();
    const auto device = device::make_device(device::DeviceKind::cpu, {1});
    const Engine engine(config, *device, alone, false);
    EXPECT_EQ(predict_memory(config, 0).bytes, device->ledger().peak().bytes) << "tied " << tied;
  }
}

class EngineDiagnosis : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Updates, EngineDiagnosis, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "fused" : "after_the_backward_pass"; });

TEST_P(EngineDiagnosis, NamesStepAndFirstTensorOfANonFiniteLoss) {
  if (testing::session().world_size() > 1) return;  // the failing rank would leave the others waiting
  Config config = odd_config(false);
  config.batch.micro = GetParam() ? kGlobal : 4;
  config.optim.clip = 0;
  comm::Mesh alone = comm::Mesh::alone();
  config.mesh.dp = 1;
  const auto device = device::make_device(device::DeviceKind::cpu, {1});
  Engine engine(config, *device, alone, false);
  engine.state().initialise(config.model, 7);
  const model::ParameterSpec& parameter =
      engine.layout().units()[2].spec->parameter("model.layers.1.mlp.up_proj.weight");
  static_cast<float*>(engine.state().master(2, parameter.offset, 4).data)[3] = std::nanf("");
  Index next = 0;
  try {
    engine.train_step(17, 1e-2, [&](data::MicroBatch& micro) {
      micro = make_batch(0, next, config.batch.micro);
      next += config.batch.micro;
    });
    FAIL() << "a NaN went unnoticed";
  } catch (const NumericError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("step 17"), std::string::npos) << text;
    EXPECT_NE(text.find("model.layers.1.mlp.up_proj.weight"), std::string::npos) << text;
  }
}

// Values of 1e38 that are multiplied by weights of zero: the loss is finite, the gradient of those weights is
// not.
TEST_P(EngineDiagnosis, NamesTheFirstTensorOfANonFiniteGradient) {
  if (testing::session().world_size() > 1) return;
  Config config = odd_config(false);
  config.batch.micro = kGlobal;
  config.mesh.dp = 1;
  config.optim.clip = 0;
  config.optim.fused = GetParam() ? "auto" : "never";
  comm::Mesh alone = comm::Mesh::alone();
  const auto device = device::make_device(device::DeviceKind::cpu, {1});
  Engine engine(config, *device, alone, false);
  engine.state().initialise(config.model, 7);
  auto values = testing::master_values(engine.state());
  for (float& v : values["model.layers.1.self_attn.v_proj.bias"]) v = 1.5e37f;
  for (float& v : values["model.layers.1.self_attn.o_proj.weight"]) v = 0;
  for (float& v : values["model.norm.weight"]) v = 100;
  testing::fill_parameters(engine.state(), values);
  const data::MicroBatch batch = make_batch(0, 0, kGlobal);
  try {
    engine.train_step(3, 1e-2, [&](data::MicroBatch& micro) { micro = batch; });
    FAIL() << "an infinite gradient went unnoticed";
  } catch (const NumericError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("gradient norm"), std::string::npos) << text;
    EXPECT_NE(text.find("model.layers.1.self_attn.o_proj.weight"), std::string::npos) << text;
  }
}

TEST(Engine, DirectionalDerivativesMatchFourthOrderDifferences) {
  if (testing::session().world_size() > 1) return;
  for (const bool tied : {false, true}) {
    Config config = odd_config(tied);
    config.batch.micro = 12;
    config.mesh.dp = 1;
    config.optim.clip = 0;
    config.optim.fused = "never";  // the gradients are looked at afterwards
    config.optim.weight_decay = 0;
    comm::Mesh alone = comm::Mesh::alone();
    const auto device = device::make_device(device::DeviceKind::cpu, {1});
    Engine engine(config, *device, alone, false);
    engine.state().initialise(config.model, 7);
    data::MicroBatch batch = make_batch(0, 0, kGlobal);
    const NextBatch next = [&](data::MicroBatch& micro) { micro = batch; };
    const Index targets = engine.train_step(1, 0.0, next).targets;
    const auto gradient = testing::gradient_values(engine.state(), 1.0 / static_cast<double>(targets));
    const auto start = testing::master_values(engine.state());
    for (const auto& [name, slope] : gradient) {
      // Along each parameter's own gradient the loss changes by its squared norm.
      const double norm = testing::distance(slope, slope).norm;
      ASSERT_GT(norm, 0) << name;
      const double h =
          0.02 / norm * std::clamp(testing::distance(start.at(name), start.at(name)).norm, 0.1, 1.0);
      const auto loss_at = [&](double step) {
        auto moved = start;
        for (std::size_t i = 0; i < slope.size(); ++i)
          moved[name][i] += static_cast<float>(step * static_cast<double>(slope[i]));
        testing::fill_parameters(engine.state(), moved);
        return engine.evaluate(next).mean();
      };
      const double derivative =
          (8 * (loss_at(h) - loss_at(-h)) - (loss_at(2 * h) - loss_at(-2 * h))) / (12 * h);
      // The loss itself carries rounding of about 1e-7, which the difference divides by h.
      EXPECT_NEAR(derivative, norm * norm, 2e-3 * norm * norm + 1e-6 / h) << name << ", tied " << tied;
    }
  }
}

}  // namespace
}  // namespace cartan::train
