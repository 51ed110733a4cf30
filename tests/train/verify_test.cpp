// The comparison finds what differs and names it; toys are small and keep what decides; meshes agree.
#include "cartan/train/verify.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "cartan/model/block.hpp"
#include "support/mpi_session.hpp"
#include "support/test_device.hpp"

namespace cartan::train {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Verdict = Comparison::Verdict;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Numbers of a model of one layer, made up.
struct MadeUp {
  model::ModelConfig model;
  ToyRun run;

  MadeUp() {
    model.hidden = 4;
    model.layers = 1;
    model.heads = 2;
    model.ffn = 3;
    model.qkv_bias = true;
    model.derive(5);
    run.losses = {3, 2, 1};
    run.norms = {1, 1, 1};
    for (const model::UnitSpec& unit : model::describe_units(model))
      for (const model::ParameterSpec& p : unit.parameters) {
        run.gradients[p.name].assign(static_cast<std::size_t>(p.elements()), 0.5f);
        run.parameters[p.name].assign(static_cast<std::size_t>(p.elements()), 1.0f);
      }
  }
  std::string difference(const ToyRun& mesh, const Tolerance& tolerance) const {
    return first_difference(compare(model, run, mesh, tolerance));
  }
};

constexpr Tolerance kBits{.same_bits = true}, kClose{.number = 1e-5, .tensor = 2e-4},
    kCoarse{.number = 2e-2, .tensor = 5e-2, .after_update = false};

TEST(Compare, FindsNothingInTheSameNumbers) {
  const MadeUp made;
  for (const Tolerance& tolerance : {kBits, kClose, kCoarse})
    EXPECT_THAT(made.difference(made.run, tolerance), IsEmpty());
  // Every tensor twice, three losses and three norms.
  EXPECT_EQ(compare(made.model, made.run, made.run, kBits).size(), 2 * made.run.gradients.size() + 6);
}

TEST(Compare, NamesTheTensorOfWhichOneElementDiffers) {
  const MadeUp made;
  for (const auto& [name, values] : made.run.gradients) {
    ToyRun mesh = made.run;
    float& last = mesh.gradients[name].back();
    last = std::nextafter(last, 1.0f);
    EXPECT_THAT(made.difference(mesh, kBits), HasSubstr("gradient of " + name + " of step 1 differs by"));
    EXPECT_THAT(made.difference(mesh, kClose), IsEmpty());
    last = 0.51f;
    EXPECT_THAT(made.difference(mesh, kClose), HasSubstr("gradient of " + name + " of step 1 differs by"));
    mesh = made.run;
    mesh.parameters[name].front() = 1.01f;
    EXPECT_THAT(made.difference(mesh, kClose), HasSubstr("parameter " + name + " after step 3 differs by"));
    EXPECT_THAT(made.difference(mesh, kCoarse), IsEmpty()) << "parameters are not compared in 16 bits";
  }
}

TEST(Compare, CountsNanAndTheSignOfZeroAsDifferences) {
  MadeUp made;
  ToyRun mesh = made.run;
  mesh.gradients["model.norm.weight"][1] = kNan;
  for (const Tolerance& tolerance : {kBits, kClose, kCoarse})
    EXPECT_THAT(made.difference(mesh, tolerance), HasSubstr("gradient of model.norm.weight of step 1"));
  made.run.gradients["model.norm.weight"][1] = kNan;
  for (const Tolerance& tolerance : {kBits, kClose, kCoarse})
    EXPECT_THAT(made.difference(mesh, tolerance), HasSubstr("gradient of model.norm.weight of step 1"))
        << "on both sides";
  mesh = made.run = MadeUp().run;
  mesh.losses[1] = kNan;
  for (const Tolerance& tolerance : {kBits, kClose, kCoarse})
    EXPECT_THAT(made.difference(mesh, tolerance), HasSubstr("loss of step 2 is nan instead of 2"));
  mesh = made.run;
  made.run.gradients["model.norm.weight"][1] = 0.0f;
  mesh.gradients["model.norm.weight"][1] = -0.0f;
  EXPECT_THAT(made.difference(mesh, kBits), HasSubstr("model.norm.weight"));
  EXPECT_THAT(made.difference(mesh, kClose), IsEmpty());
}

TEST(Compare, ComparesATensorOfZerosWithZeros) {
  MadeUp made;
  for (float& v : made.run.gradients["lm_head.weight"]) v = 0;
  ToyRun mesh = made.run;
  EXPECT_THAT(made.difference(mesh, kClose), IsEmpty());
  mesh.gradients["lm_head.weight"][0] = 1e-30f;
  EXPECT_THAT(made.difference(mesh, kClose), HasSubstr("lm_head.weight"));
}

TEST(Compare, NamesWhatComesFirst) {
  const MadeUp made;
  ToyRun mesh = made.run;
  for (auto* tensors : {&mesh.parameters, &mesh.gradients})
    for (auto& [name, values] : *tensors) values.front() += 1;
  // In the order of the model, not of the alphabet: embedding, layer (its norms first), head.
  EXPECT_THAT(made.difference(mesh, kClose), HasSubstr("gradient of model.embed_tokens.weight"));
  mesh.gradients["model.embed_tokens.weight"] = made.run.gradients.at("model.embed_tokens.weight");
  EXPECT_THAT(made.difference(mesh, kClose), HasSubstr("gradient of model.layers.0.input_layernorm.weight"));
  mesh.gradients = made.run.gradients;
  EXPECT_THAT(made.difference(mesh, kClose), HasSubstr("parameter model.embed_tokens.weight after step 3"));
  mesh.norms[0] = 1.1;
  const std::string both = made.difference(mesh, kClose);
  EXPECT_THAT(both, HasSubstr("gradient norm of step 1 is 1.1 instead of 1, a difference of 0.1;"));
  EXPECT_THAT(both, HasSubstr("; first tensor: parameter model.embed_tokens.weight after step 3"));
  mesh.losses[0] = 3.1;
  EXPECT_THAT(made.difference(mesh, kClose), HasSubstr("loss of step 1 is 3.1 instead of 3"));
}

TEST(Compare, PassesOverNoiseIn16BitsOnly) {
  const MadeUp made;
  ToyRun mesh = made.run;
  mesh.gradients["model.layers.0.self_attn.k_proj.bias"][0] = 7;
  mesh.norms[1] = 7;
  EXPECT_THAT(made.difference(mesh, kCoarse), IsEmpty());
  EXPECT_THAT(made.difference(mesh, kClose), HasSubstr("k_proj.bias"));
  mesh.gradients["model.layers.0.self_attn.q_proj.bias"][0] = 7;
  EXPECT_THAT(made.difference(mesh, kCoarse), HasSubstr("q_proj.bias"));
}

/// The configuration of a preset as a user has it, unresolved.
Config of_preset(const char* name, comm::MeshShape mesh) {
  Config config;
  config.model = model::preset(name);
  config.mesh = mesh;
  config.data.train = {"none"};
  config.data.seq = 4096;
  config.batch.global = Index{96} * mesh.dp;
  config.batch.micro = 4;
  config.run.threads = 1;
  return config;
}

/// Of what resolves: a toy that does so too, and keeps what decides the code that runs. Whether it did.
bool is_verifiable(Config config) {
  try {
    resolve(config, config.mesh.size());
  } catch (const ConfigError&) {
    return false;  // not for this model, says the configuration itself
  }
  const std::string where =
      fmt::format("{} on {}, {}", config.model.preset, comm::to_string(config.mesh), config.context.exchange);
  Config toy = shrink(config);
  EXPECT_NO_THROW(resolve(toy, config.mesh.size())) << where;
  EXPECT_LT(model::parameter_count(toy.model), 2'000'000) << where;
  EXPECT_LE(toy.batch.global * toy.data.seq, Index{32} * 100 * toy.mesh.dp) << where;
  EXPECT_EQ(toy.model.heads / toy.model.kv_heads, config.model.heads / config.model.kv_heads) << where;
  EXPECT_EQ(toy.model.kv_heads % toy.mesh.tp == 0, config.model.kv_heads % config.mesh.tp == 0) << where;
  EXPECT_EQ(toy.model.tied, config.model.tied) << where;
  EXPECT_EQ(toy.model.qkv_bias, config.model.qkv_bias) << where;
  EXPECT_EQ(toy.mesh.extents(), config.mesh.extents()) << where;
  EXPECT_EQ(micro_batches(toy), 8) << where;
  return true;
}

TEST(Shrink, MakesAToyOfAnyPresetOnAnyMesh) {
  int verifiable = 0;
  for (const char* preset : {"llama3-8b", "llama3-70b", "qwen2.5-0.5b", "smollm2-135m"})
    for (const int tp : {1, 2, 3, 4, 8})
      for (const int cp : {1, 2})
        for (const char* exchange : {"ring", "all-gather", "all-to-all"})
          for (const int pp : {1, 2, 4})
            for (const int chunks : {1, 2}) {
              Config config = of_preset(preset, {pp, 2, cp, tp});
              config.context.exchange = exchange;
              config.pipeline.chunks = chunks;
              config.pipeline.schedule = chunks > 1 ? "interleaved" : "1f1b";
              verifiable += is_verifiable(config) ? 1 : 0;
            }
  EXPECT_GT(verifiable, 150);
}

TEST(Shrink, KeepsWindowsAndRotations) {
  Config config = of_preset("llama3-8b", {1, 1, 2, 2});
  config.model.window = 2048;
  config.model.window_layers = "20-31";
  config.model.rotary_dim = 96;
  config.model.rope_scaling.kind = "longrope";
  config.model.rope_scaling.short_factors.assign(48, 1.5);
  config.model.rope_scaling.long_factors.assign(48, 2.5);
  config.model.max_length = 16384;
  for (const Index original : {4096, 2048}) {
    config.model.rope_scaling.original_length = original;
    const model::ModelConfig toy = [&] {
      Config resolved = config;
      resolve(resolved, 4);
      return shrink(resolved).model;
    }();
    EXPECT_EQ(toy.window, 7);
    EXPECT_EQ(toy.window_layers, "0-0");
    EXPECT_EQ(toy.rotary_dim, 6);
    EXPECT_EQ(model::rope_frequencies(toy, 36).front(), original == 4096 ? 1 / 1.5 : 1 / 2.5);
  }
}

TEST(Shrink, KeepsMicroBatchesAndGroupsThatAreSmall) {
  Config config = of_preset("qwen2.5-0.5b", {3, 1, 1, 1});
  config.batch = {.global = 9, .micro = 1};
  config.pipeline.schedule = "interleaved";
  resolve(config, 3);
  Config toy = shrink(config);
  EXPECT_EQ(micro_batches(toy), 6) << "a multiple of the stages";
  EXPECT_EQ(toy.model.heads, 14);
  EXPECT_EQ(toy.model.kv_heads, 2);
  config.batch = {.global = 15, .micro = 5};
  config.recompute = {"block", "0-1,5"};
  resolve(config, 3);
  toy = shrink(config);
  EXPECT_EQ(micro_batches(toy), 3);
  EXPECT_EQ(toy.batch.micro, 3) << "no power of two";
  EXPECT_EQ(toy.recompute.policy, "block");
  EXPECT_EQ(toy.recompute.layers, "0-2");
  EXPECT_EQ(toy.model.layers, 4);
}

TEST(Shrink, KeepsTheLayersOfACutByHandOrRefuses) {
  Config config = of_preset("llama3-8b", {2, 1, 1, 1});
  config.pipeline.cut = "15,17";
  resolve(config, 2);
  EXPECT_EQ(shrink(config).model.layers, 32);
  config = of_preset("llama3-70b", {2, 1, 1, 1});
  config.pipeline.cut = "39,41";
  resolve(config, 2);
  try {
    shrink(config);
    FAIL() << "80 layers are no toy";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("pipeline.cut = 39,41 lists model.layers = 80"));
  }
}

bool overlaps() { return testing::session().thread_multiple() && testing::session().world_size() > 1; }

Config qwen_on(comm::MeshShape mesh) {
  Config config = of_preset("qwen2.5-0.5b", mesh);
  config.batch = {.global = Index{3} * mesh.dp, .micro = 1};
  resolve(config, mesh.size());
  return config;
}

/// All ranks along dp, and half of them with pairs along tp or cp.
std::vector<comm::MeshShape> flat_shapes(int ranks) {
  std::vector<comm::MeshShape> shapes{{1, ranks, 1, 1}};
  if (ranks % 2 == 0) {
    shapes.push_back({1, ranks / 2, 1, 2});
    shapes.push_back({1, ranks / 2, 2, 1});
  }
  return shapes;
}

TEST(Verify, FindsThatMeshesAgree) {
  comm::Session& session = testing::session();
  const int ranks = session.world_size();
  std::vector<comm::MeshShape> shapes = flat_shapes(ranks);
  if (ranks % 2 == 0 && session.thread_multiple()) shapes.push_back({2, ranks / 2, 1, 1});
  const auto device = cartan::testing::make_test_device(1);
  int turn = 0;
  for (const comm::MeshShape& shape : shapes)
    for (const char* compute : {"fp32", "bf16", "fp16"}) {
      Config config = qwen_on(shape);
      config.precision.compute = compute;
      config.zero.stage = ++turn % 4;
      config.recompute.policy = turn % 2 == 0 ? "block" : "none";
      comm::Mesh mesh(session, shape, cartan::testing::test_device_kind());
      const Verification verification = verify(config, session, mesh, *device);
      EXPECT_EQ(first_difference(verification.rows), "")
          << comm::to_string(shape) << ", " << compute << ", ZeRO " << config.zero.stage;
      EXPECT_EQ(verification.rows.empty(), session.rank() != 0);
      EXPECT_EQ(verification.tolerance.same_bits, shape.tp == 1 && shape.cp == 1);
    }
}

TEST(Verify, FindsThatMeshesAgreeOnWindowsAndPartialRotation) {
  comm::Session& session = testing::session();
  const std::vector<comm::MeshShape> shapes = flat_shapes(session.world_size());
  const auto device = cartan::testing::make_test_device(1);
  for (const comm::MeshShape& shape : shapes)
    for (const char* exchange : {"ring", "all-gather", "all-to-all"}) {
      if (shape.cp == 1 && exchange != std::string("ring")) continue;
      Config config = of_preset("llama3-8b", shape);
      config.batch = {.global = Index{3} * shape.dp, .micro = 1};
      config.context.exchange = exchange;
      config.model.window = 1000;
      config.model.window_layers = "0-20";
      config.model.rotary_dim = 96;
      resolve(config, shape.size());
      comm::Mesh mesh(session, shape, cartan::testing::test_device_kind());
      EXPECT_EQ(first_difference(verify(config, session, mesh, *device).rows), "")
          << comm::to_string(shape) << ", " << exchange;
      Config everything = shrink(config);
      everything.model.window = 0;
      EXPECT_NE(train_toy(shrink(config), mesh, *device, overlaps()).losses,
                train_toy(everything, mesh, *device, overlaps()).losses)
          << "the window is seen";
    }
}

TEST(Verify, ComparesRoundedGradientsLessStrictlyAndLeavesHooksOut) {
  comm::Session& session = testing::session();
  const comm::MeshShape shape{1, session.world_size(), 1, 1};
  comm::Mesh mesh(session, shape, cartan::testing::test_device_kind());
  const auto device = cartan::testing::make_test_device(1);
  Config config = qwen_on(shape);
  config.hook = {"topk", 2, 0.01, 0};
  EXPECT_TRUE(verify(config, session, mesh, *device).tolerance.same_bits);
  config.precision.reduce = "bf16";
  const Verification verification = verify(config, session, mesh, *device);
  EXPECT_EQ(first_difference(verification.rows), "");
  EXPECT_EQ(verification.tolerance.same_bits, session.world_size() == 1);
}

TEST(Verify, FindsAMeshThatComputesSomethingElse) {
  comm::Session& session = testing::session();
  const comm::MeshShape shape{1, session.world_size(), 1, 1};
  comm::Mesh mesh(session, shape, cartan::testing::test_device_kind());
  Config toy = shrink(qwen_on(shape));
  const auto device = cartan::testing::make_test_device(1);
  const ToyRun right = train_toy(toy, mesh, *device, overlaps());
  const auto difference = [&](const Config& defect) {
    return first_difference(compare(toy.model, right, train_toy(defect, mesh, *device, overlaps()), kBits));
  };
  EXPECT_THAT(difference(toy), IsEmpty());
  Config defect = toy;
  defect.optim.weight_decay = 0;
  EXPECT_THAT(difference(defect), HasSubstr("of step 2")) << "the first update";
  defect = toy;
  defect.model.rope_theta = 10;
  EXPECT_THAT(difference(defect), HasSubstr("loss of step 1"));
  EXPECT_THAT(difference(defect), HasSubstr("first tensor: gradient of model.embed_tokens.weight of step 1"));
}

}  // namespace
}  // namespace cartan::train
