// One training step, however it is cut into ranks, micro-batches, buckets and threads, gives the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/test_device.hpp"
#include "train/toy_run.hpp"

namespace cartan::train {
namespace {

class EngineBits : public ::testing::TestWithParam<std::tuple<bool, std::string>> {};

TEST_P(EngineBits, DoNotDependOnRanksMicroBatchesBucketsOrThreads) {
  Config config = odd_config(std::get<0>(GetParam()));
  config.precision.compute = std::get<1>(GetParam());
  comm::Session& session = testing::session();
  comm::Mesh mesh(session, comm::MeshShape{1, session.world_size(), 1, 1},
                  cartan::testing::test_device_kind());
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
TEST_P(EngineBits, DoNotDependOnFusedUpdatesOrRecomputation) {
  Config config = odd_config(std::get<0>(GetParam()));
  config.precision.compute = std::get<1>(GetParam());
  config.optim.clip = 0;
  comm::Mesh alone = comm::Mesh::alone();
  config.optim.fused = "never";
  const Outcome one = run(config, kGlobal, 1.0, 1, alone, false);
  config.optim.fused = "auto";
  EXPECT_TRUE(run(config, kGlobal, 1.0, 2, alone, false) == one) << "units updated during the backward pass";
  config.recompute = {"mlp", "0,2"};
  EXPECT_TRUE(run(config, kGlobal, 1.0, 1, alone, false) == one) << "and two layers recomputed";
  for (const char* policy : {"mlp", "attention", "block"}) {
    config.recompute = {policy, "all"};
    EXPECT_TRUE(run(config, 5, 1.0, 1, alone, false) == one) << policy << " recomputed, with accumulation";
  }
  for (const char* layers : {"all", "1"}) {
    config.recompute = {"offload", layers};
    EXPECT_TRUE(run(config, 5, 1.0, 1, alone, false) == one)
        << "activations of layers " << layers << " offloaded";
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EngineBits,
                         ::testing::Combine(::testing::Bool(), ::testing::Values("fp32", "bf16")),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param) ? "tied_" : "untied_") +
                                  std::get<1>(test.param);
                         });

/// Losses of steps on one batch.
std::vector<double> losses_of(Config config, comm::Mesh& mesh, int steps) {
  config.batch.micro = kGlobal % (3 * mesh.shape().dp) == 0 ? 3 : 1;
  config.mesh = mesh.shape();
  config.run.threads = 1;
  const auto device = cartan::testing::make_test_device(1);
  Engine engine(config, *device, mesh, testing::session().thread_multiple());
  engine.state().initialise(config.model, 7);
  std::vector<double> losses;
  for (int step = 1; step <= steps; ++step) {
    Index next = 0;
    losses.push_back(engine
                         .train_step(step, 3e-3,
                                     [&](data::MicroBatch& batch) {
                                       const LeafRange leaves = engine.share().of(next++);
                                       batch = make_batch(0, leaves.begin, leaves.end - leaves.begin,
                                                          config.data.seq);
                                     })
                         .loss);
  }
  EXPECT_EQ(predict_memory(config, mesh.world().rank()).bytes, device->ledger().peak().bytes)
      << comm::to_string(config.mesh) << ", hook " << config.hook.gradient << ", reduce "
      << config.precision.reduce << ", ZeRO " << config.zero.stage;
  return losses;
}

/// Meshes of up to four ranks in which gradients travel over one axis or two.
std::vector<comm::MeshShape> exchanging_meshes(int ranks) {
  if (ranks > 4) return {};
  if (ranks % 2 != 0) return {{1, ranks, 1, 1}};
  if (ranks == 2) return {{1, 2, 1, 1}, {1, 1, 2, 1}};
  return {{1, 4, 1, 1}, {1, 2, 1, 2}, {2, 2, 1, 1}, {1, 1, 2, 2}, {1, 2, 2, 1}};
}

TEST(EngineHooks, CompressedGradientsTrainNearlyAsWell) {
  comm::Session& session = testing::session();
  if (!session.thread_multiple()) GTEST_SKIP() << "needs MPI_THREAD_MULTIPLE";
  constexpr int kMany = 12;
  std::map<bool, std::vector<double>> on_another_mesh;
  bool tied = false;
  for (const comm::MeshShape& shape : exchanging_meshes(session.world_size())) {
    comm::Mesh mesh(session, shape, cartan::testing::test_device_kind());
    Config config = odd_config(tied = !tied);
    config.data.seq = 36;
    config.zero.stage = tied ? 1 : 0;
    config.zero.shard = shape.dp == 4 ? 2 : 0;
    const std::vector<double> plain = losses_of(config, mesh, kMany);
    for (const char* hook : {"powersgd", "topk"}) {
      config.hook = {hook, 4, 0.1, 2};
      const std::vector<double> losses = losses_of(config, mesh, kMany);
      const std::string where = fmt::format("{} on {}, tied {}", hook, comm::to_string(shape), tied);
      // Two updates travel whole; the third shows in the fourth loss.
      for (std::size_t step = 0; step < 3; ++step) EXPECT_EQ(losses[step], plain[step]) << where;
      EXPECT_EQ(losses[3] == plain[3], shape.dp * shape.cp == 1) << where;
      // The batch is random tokens, learnt by heart: nothing about its gradients is low-rank or sparse.
      EXPECT_NEAR(losses.back(), plain.back(), 0.5 * (plain.front() - plain.back())) << where;
      if (std::string(hook) != "powersgd" || shape.tp > 1 || shape.dp * shape.cp == 1) continue;
      // All that PowerSGD does with the ranks' gradients is linear: sharing them otherwise is rounding.
      std::vector<double>& others = on_another_mesh[tied];
      for (std::size_t step = 0; step < others.size(); ++step)
        EXPECT_NEAR(losses[step], others[step], 1e-4 * losses[step]) << where << ", step " << step;
      others = losses;
    }
  }
}

TEST(EngineHooks, SixteenBitReductionStaysNearFp32) {
  comm::Session& session = testing::session();
  if (!session.thread_multiple()) GTEST_SKIP() << "needs MPI_THREAD_MULTIPLE";
  for (const comm::MeshShape& shape : exchanging_meshes(session.world_size())) {
    comm::Mesh mesh(session, shape, cartan::testing::test_device_kind());
    for (const int stage : {0, 1, 2, 3})
      for (const int shard : {0, 2}) {
        if (shard > 0 && (stage == 0 || shape.dp * shape.cp != 4)) continue;
        Config config = odd_config(stage % 2 == 0);
        config.data.seq = 36;
        config.zero.stage = stage;
        config.zero.shard = shard;
        const Index micro = kGlobal % (3 * shape.dp) == 0 ? 3 : 1;
        const Outcome exact = run(config, micro, 0.02, 1, mesh, true);
        config.precision.reduce = "bf16";
        const Outcome rounded = run(config, micro, 0.02, 1, mesh, true);
        const std::string where = fmt::format("{}, ZeRO {}, shard {}", comm::to_string(shape), stage, shard);
        EXPECT_EQ(rounded == exact, shape.dp * shape.cp == 1) << where;
        EXPECT_EQ(rounded.numbers[0], exact.numbers[0]) << where;
        EXPECT_NEAR(rounded.numbers[1] / exact.numbers[1], 1.0, 2e-3) << where;
        expect_near(rounded, exact, "bf16", where);
      }
  }
}

TEST(EngineHooks, RoundedRotaryTablesStayNearFp32Ones) {
  if (testing::session().world_size() > 1) return;  // every rank would do the same
  comm::Mesh alone = comm::Mesh::alone();
  Config config = odd_config(true);
  const Outcome exact = run(config, 4, 1.0, 1, alone, false);
  for (const char* buffer : {"bf16", "fp16"}) {
    config.precision.buffer = buffer;
    const Outcome rounded = run(config, 4, 1.0, 1, alone, false);
    EXPECT_NE(rounded.numbers, exact.numbers);
    expect_near(rounded, exact, buffer, buffer);
  }
}

TEST(EngineFp16, FollowsFp32AndSkipsWhatOverflows) {
  comm::Session& session = testing::session();
  comm::Mesh mesh(session, comm::MeshShape{1, session.world_size(), 1, 1},
                  cartan::testing::test_device_kind());
  Config config = odd_config(true);
  if (kGlobal % session.world_size() != 0) GTEST_SKIP() << "the batch does not divide";
  const Outcome exact = run(config, 1, 1.0, 1, mesh, session.thread_multiple());
  config.precision.compute = "fp16";
  const Outcome half = run(config, 1, 1.0, 1, mesh, session.thread_multiple());
  expect_near(half, exact, "fp16", "fp16");
  config.precision.reduce = "fp16";
  expect_near(run(config, 1, 1.0, 1, mesh, session.thread_multiple()), exact, "fp16",
              "fp16, also on the wire");

  // A scale at which gradients overflow is halved until they do not; nothing is updated meanwhile.
  config.precision.loss_scale_power = 40;
  config.precision.loss_scale_hysteresis = 1;
  config.batch.micro = 1;
  config.mesh = mesh.shape();
  const auto device = cartan::testing::make_test_device(1);
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
      comm::Mesh mesh(session, comm::MeshShape{1, session.world_size(), 1, 1},
                      cartan::testing::test_device_kind());
      config.mesh = mesh.shape();
      const auto device = cartan::testing::make_test_device(2);
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
    const auto device = cartan::testing::make_test_device(1);
    const Engine engine(config, *device, alone, false);
    EXPECT_EQ(predict_memory(config, 0).bytes, device->ledger().peak().bytes) << "tied " << tied;
  }
}

class EngineDiagnosis : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Updates, EngineDiagnosis, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "fused" : "after_the_backward_pass"; });

TEST_P(EngineDiagnosis, NamesStepAndFirstTensorOfANonFiniteLoss) {
  if (testing::session().world_size() > 1) return;
  Config config = odd_config(false);
  config.batch.micro = GetParam() ? kGlobal : 4;
  config.optim.clip = 0;
  comm::Mesh alone = comm::Mesh::alone();
  config.mesh.dp = 1;
  const auto device = cartan::testing::make_test_device(1);
  Engine engine(config, *device, alone, false);
  engine.state().initialise(config.model, 7);
  const model::ParameterSpec& parameter =
      engine.layout().units()[2].spec->parameter("model.layers.1.mlp.up_proj.weight");
  cartan::testing::upload(*device, engine.state().master(2, parameter.offset + 3, 1).data,
                          std::vector{std::nanf("")});
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

TEST(Engine, EveryRankNamesSequenceAndTensorOfANonFiniteLoss) {
  const int ranks = testing::session().world_size();
  for (const comm::MeshShape& shape : {comm::MeshShape{1, ranks, 1, 1}, comm::MeshShape{ranks, 1, 1, 1}}) {
    if (kGlobal % shape.dp != 0 || (shape.pp > 1 && !testing::session().thread_multiple()) || shape.pp > 3)
      continue;
    Config config = odd_config(false);
    config.batch.micro = 1;
    config.zero.stage = shape.dp > 1 ? 3 : 0;
    comm::Mesh mesh(testing::session(), shape, cartan::testing::test_device_kind());
    config.mesh = mesh.shape();
    config.run.device = cartan::testing::test_device_name();
    const auto device = cartan::testing::make_test_device(1);
    Engine engine(config, *device, mesh, testing::session().thread_multiple());
    engine.state().initialise(config.model, 7);
    auto values = testing::master_values(engine.state());
    const auto norm = values.find("model.norm.weight");
    if (norm != values.end() && !norm->second.empty()) norm->second.front() = std::nanf("");
    testing::fill_parameters(engine.state(), values);
    Index next = 0;
    try {
      engine.train_step(17, 1e-2, [&](data::MicroBatch& micro) {
        const LeafRange leaves = engine.share().of(next++);
        micro = make_batch(0, leaves.begin, leaves.end - leaves.begin);
      });
      ADD_FAILURE() << "a NaN went unnoticed on " << comm::to_string(shape);
    } catch (const NumericError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("step 17: the loss of sequence 0 of"), std::string::npos) << text;
      EXPECT_NE(text.find("first tensor: parameter model.norm.weight"), std::string::npos) << text;
    }
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
  const auto device = cartan::testing::make_test_device(1);
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
    const auto device = cartan::testing::make_test_device(1);
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
