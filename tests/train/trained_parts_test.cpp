// Adapters, and parameters trained alone: what they must compute, and that every mesh computes it.
#include <cmath>
#include <functional>

#include "cartan/core/json.hpp"
#include "cartan/model/adapters.hpp"
#include "cartan/store/adapter_folder.hpp"
#include "cartan/store/model_config_file.hpp"
#include "cartan/train/model_source.hpp"
#include "train/toy_run.hpp"

namespace cartan::train {
namespace {

constexpr Index kCutSeq = 24, kBatch = 12;  // which every mesh below can cut

/// A way to train some parameters only.
struct Way {
  const char* name;
  bool tied;
  std::function<void(model::ModelConfig&)> choose;
};

const Way kWays[] = {
    {"adapters_everywhere", false,
     [](model::ModelConfig& m) {
       m.lora.rank = 3;
       m.lora.alpha = 5;
       m.lora.dropout = 0.25;
       m.lora.targets = {"all-linear"};
     }},
    {"adapters_of_one_layer", true,
     [](model::ModelConfig& m) {
       m.lora.rank = 2;
       m.lora.targets = {"q_proj", "*.down_proj"};
       m.lora.layers = "1";
     }},
    {"adapters_and_norms", true,
     [](model::ModelConfig& m) {
       m.lora.rank = 2;
       m.lora.targets = {"model.layers.0.self_attn.o_proj", "model.layers.2.mlp.gate_proj"};
       m.train_only = {"*norm.weight"};
     }},
    {"part_of_the_joint_projections", false,
     [](model::ModelConfig& m) {
       m.train_only = {"k_proj.weight", "q_proj.bias", "model.layers.2.mlp.up_proj.*"};
     }},
    {"biases", false, [](model::ModelConfig& m) { m.train_only = {"*.bias"}; }},
    {"both_ends_tied", true, [](model::ModelConfig& m) { m.train_only = {"embed_tokens.weight"}; }},
    {"head_alone", false, [](model::ModelConfig& m) { m.train_only = {"lm_head.weight"}; }},
    {"all_but_the_ends", false, [](model::ModelConfig& m) { m.train_only = {"model.layers.*"}; }},
};

Config config_of(const Way& way) {
  Config config = odd_config(way.tied);
  way.choose(config.model);
  config.data.seq = kCutSeq;
  config.batch.global = cartan::testing::on_cpu() ? kBatch : 4;
  config.optim.lr = 1e-3;
  return config;
}

class TrainedParts : public ::testing::TestWithParam<Way> {
 protected:
  Outcome on(const Config& config, comm::Mesh& mesh, Index micro) const {
    return run(config, micro, 0.02, 1, mesh, mesh.world().size() > 1, cartan::testing::on_cpu() ? kSteps : 2);
  }
  comm::Session& session_ = testing::session();
  int ranks_ = testing::session().world_size();
};
INSTANTIATE_TEST_SUITE_P(Ways, TrainedParts, ::testing::ValuesIn(kWays),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(TrainedParts, HaveTheNumbersOfOneRankOnEveryMesh) {
  if (!session_.thread_multiple()) GTEST_SKIP() << "needs MPI_THREAD_MULTIPLE";
  const std::string way = GetParam().name;
  if (!cartan::testing::on_cpu() && way != "adapters_everywhere" && way != "part_of_the_joint_projections" &&
      way != "both_ends_tied")
    GTEST_SKIP() << "other ways have no other operations, and the emulated device is slow";
  const Config base = config_of(GetParam());
  comm::Mesh alone = comm::Mesh::alone();
  const Outcome one = on(base, alone, 1);
  expect_same_bits(on(base, alone, 4), one, "one rank, micro-batch 4");
  int turn = 0, number = 0;
  for (const int pp : {1, 2, 3})
    for (const int cp : {1, 2, 3})
      for (const int tp : {1, 2, 6}) {
        if (ranks_ % (pp * cp * tp) != 0 || base.batch.global % (ranks_ / (pp * cp * tp)) != 0) continue;
        ++number;
        for (const int stage : {0, 1, 2, 3}) {
          // Where meshes are many, or slow, each has two stages.
          const bool is_tried = stage == number % 4 || stage == 3 - number % 4;
          if ((ranks_ > 3 || !cartan::testing::on_cpu()) && !is_tried) continue;
          Config config = base;
          config.zero.stage = stage;
          config.pipeline.schedule = turn % 2 == 0 ? "1f1b" : "zero-bubble";
          config.recompute.policy = turn % 4 == 1 ? "block" : turn % 4 == 3 ? "offload" : "none";
          config.zero.offload = turn % 5 == 2 ? "all" : "none";
          config.tensor.chunks = 1 + turn % 2;
          ++turn;
          comm::Mesh mesh(session_, {pp, ranks_ / (pp * cp * tp), cp, tp},
                          cartan::testing::test_device_kind());
          const std::string where =
              fmt::format("{}, ZeRO {}, {}, recompute {}, offload {}", comm::to_string(mesh.shape()), stage,
                          config.pipeline.schedule, config.recompute.policy, config.zero.offload);
          const Outcome found = on(config, mesh, 1);
          if (cp == 1 && tp == 1)
            expect_same_bits(found, one, where);
          else
            expect_near(found, one, "fp32", where);
        }
      }
}

TEST_P(TrainedParts, AloneHaveGradientsStatesAndMessages) {
  Config config = config_of(GetParam());
  config.batch.micro = 1;
  config.run.device = cartan::testing::test_device_name();
  comm::Mesh mesh(session_, {1, ranks_, 1, 1}, cartan::testing::test_device_kind());
  config.mesh = mesh.shape();
  const device::MemoryUsage some = predict_memory(config, 0);
  Config whole = config;
  whole.model = model::without_adapters(config.model);
  const device::MemoryUsage all = predict_memory(whole, 0);
  const auto bytes = [](const device::MemoryUsage& usage, device::MemoryKind kind) {
    return static_cast<double>(usage.bytes[static_cast<std::size_t>(kind)]);
  };
  const double share = static_cast<double>(model::trained_parameter_count(config.model)) /
                       static_cast<double>(model::parameter_count(whole.model));
  // Units are rounded up to 4 KiB.
  const double units = static_cast<double>(config.model.layers + 3) * 4096;
  EXPECT_LE(bytes(some, device::MemoryKind::moments),
            share * bytes(all, device::MemoryKind::moments) + 2 * units);
  EXPECT_LE(bytes(some, device::MemoryKind::gradients),
            share * bytes(all, device::MemoryKind::gradients) + 4 * units);
}

/// The gradients of one step, and of the parameters that it begins with, whole.
struct Step {
  Tensors gradients, parameters;
};
Step first_step(Config config, const std::function<void(shard::FlatState&)>& prepare) {
  comm::Mesh mesh = comm::Mesh::alone();
  config.batch.micro = 2;
  config.batch.global = 4;
  config.mesh = mesh.shape();
  config.run.device = cartan::testing::test_device_name();
  config.optim.fused = "never";
  config.optim.clip = 0;
  const auto device = cartan::testing::make_test_device(1);
  Engine engine(config, *device, mesh, false);
  engine.state().initialise(config.model, 7);
  prepare(engine.state());
  Step step;
  step.parameters = master_values(engine.state());
  Index next = 0;
  engine.train_step(1, 0.0, [&](data::MicroBatch& batch) {
    const LeafRange leaves = engine.share().of(next++);
    batch = make_batch(0, leaves.begin, leaves.end - leaves.begin, config.data.seq, 1);
  });
  step.gradients = gradient_values(engine.state(), 1.0);
  return step;
}

TEST_P(TrainedParts, HaveTheGradientsThatTheyHaveInTheWholeModel) {
  Config config = config_of(GetParam());
  if (config.model.lora.rank > 0) GTEST_SKIP() << "the whole model has no adapters";
  const Step some = first_step(config, [](shard::FlatState&) {});
  config.model.train_only.clear();
  const Step all = first_step(config, [](shard::FlatState&) {});
  EXPECT_FALSE(some.gradients.empty());
  // Where a joint projection falls into several products they add up their gradients in another order.
  for (const auto& [name, gradient] : some.gradients) {
    const Distance d = distance(gradient, all.gradients.at(name));
    EXPECT_LT(d.difference, 1e-6 * d.norm) << name;
  }
}

/// Sets the trained parameters whose name ends like this to numbers of this size.
void randomize(shard::FlatState& state, std::string_view ending) {
  shard::for_each_part(state.layout(), &shard::GradientPart::owned,
                       [&](std::size_t unit, const model::ParameterSpec& p, Index begin, Index end) {
                         if (!p.name.ends_with(ending)) return;
                         std::vector<float> values(narrow<std::size_t>(end - begin));
                         RandomStream(3, p.name).fill_normal(0, 0.0, 0.3, values);
                         cartan::testing::upload(state.device(),
                                                 state.master(unit, p.offset, end - begin).data, values);
                       });
  state.refresh_compute();
}

/// a [n, k] times b [k, m].
std::vector<double> product(const std::vector<double>& a, const std::vector<double>& b, std::size_t k) {
  const std::size_t n = a.size() / k, m = b.size() / k;
  std::vector<double> c(n * m, 0.0);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < k; ++j)
      for (std::size_t l = 0; l < m; ++l) c[i * m + l] += a[i * k + j] * b[j * m + l];
  return c;
}
std::vector<double> transposed(const std::vector<double>& a, std::size_t cols) {
  std::vector<double> t(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) t[(i % cols) * (a.size() / cols) + i / cols] = a[i];
  return t;
}
std::vector<double> doubles(const std::vector<float>& values) { return {values.begin(), values.end()}; }

// With W' = W + s B A the loss is that of the model with W', and so dB = s dW' A^T, dA = s B^T dW'.
TEST(Adapters, HaveTheGradientsOfTheWeightsThatTheyAddUpTo) {
  Config config = config_of(kWays[0]);
  config.model.lora.dropout = 0;
  const Step adapted = first_step(config, [](shard::FlatState& state) { randomize(state, "lora_B.weight"); });
  const double scale = config.model.lora.scale();
  const auto rank = narrow<std::size_t>(config.model.lora.rank);
  Config merged = config;
  merged.model = model::without_adapters(config.model);
  const auto sum_of = [&](const std::string& linear) {
    return product(doubles(adapted.parameters.at(model::adapter_b(linear))),
                   doubles(adapted.parameters.at(model::adapter_a(linear))), rank);
  };
  const Step whole = first_step(merged, [&](shard::FlatState& state) {
    Tensors values = master_values(state);
    for (auto& [name, weights] : values) {
      const std::string linear = name.substr(0, name.rfind(".weight"));
      if (!adapted.parameters.contains(model::adapter_a(linear))) continue;
      const std::vector<double> sum = sum_of(linear);
      for (std::size_t i = 0; i < weights.size(); ++i)
        weights[i] = static_cast<float>(static_cast<double>(weights[i]) + scale * sum[i]);
    }
    testing::fill_parameters(state, values);
  });
  int compared = 0;
  for (Index layer = 0; layer < config.model.layers; ++layer)
    for (const std::string_view projection : model::kAdaptable) {
      const std::string linear = model::linear_name(layer, projection);
      const std::vector<double> dw = doubles(whole.gradients.at(linear + ".weight"));
      const std::vector<double> a = doubles(adapted.parameters.at(model::adapter_a(linear)));
      const std::vector<double> b = doubles(adapted.parameters.at(model::adapter_b(linear)));
      const std::size_t cols = a.size() / rank;
      const auto expect = [&](const std::string& name, std::vector<double> expected) {
        std::vector<float> rounded;
        for (const double value : expected) rounded.push_back(static_cast<float>(scale * value));
        const Distance d = distance(adapted.gradients.at(name), rounded);
        EXPECT_LT(d.difference, 2e-5 * d.norm) << name;
        EXPECT_GT(d.norm, 0) << name;
        ++compared;
      };
      expect(model::adapter_b(linear), product(dw, transposed(a, cols), cols));
      expect(model::adapter_a(linear), product(transposed(b, rank), dw, b.size() / rank));
    }
  EXPECT_EQ(compared, 2 * 7 * 3);
}

TEST(Adapters, LeaveInputsAwayAnewInEachStepAndNeverInEvaluation) {
  Config config = config_of(kWays[0]);
  config.model.lora.dropout = 0.5;
  config.batch.global = config.batch.micro = 2;
  comm::Mesh mesh = comm::Mesh::alone();
  config.mesh = mesh.shape();
  config.run.device = cartan::testing::test_device_name();
  const auto device = cartan::testing::make_test_device(1);
  Engine engine(config, *device, mesh, false);
  engine.state().initialise(config.model, 7);
  randomize(engine.state(), "lora_B.weight");
  const NextBatch batch = [&](data::MicroBatch& micro) { micro = make_batch(0, 0, 2, config.data.seq, 1); };
  const double first = engine.train_step(1, 0.0, batch).loss, again = engine.train_step(1, 0.0, batch).loss;
  const double second = engine.train_step(2, 0.0, batch).loss;
  EXPECT_EQ(first, again);
  EXPECT_NE(first, second);
  const double evaluated = engine.evaluate(batch).mean();
  EXPECT_EQ(evaluated, engine.evaluate(batch).mean());
  config.model.lora.dropout = 0;
  Engine without(config, *device, mesh, false);
  without.state().initialise(config.model, 7);
  randomize(without.state(), "lora_B.weight");
  EXPECT_EQ(without.train_step(1, 0.0, batch).loss, evaluated);
}

/// Five steps of llama3-tiny with adapters beside q and v, by PEFT.
class GoldenAdapters : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::find_golden("models/llama3-tiny");
    expected_ = testing::find_golden("expected/llama3-tiny-lora");
    if (!folder_ || !expected_) GTEST_SKIP() << "the larger golden set is not here";
  }
  std::optional<std::filesystem::path> folder_, expected_;
};

TEST_F(GoldenAdapters, FiveStepsMatchOnEveryMesh) {
  const Json golden = read_json(*expected_ / "train.json");
  const std::vector<std::int32_t> tokens =
      store::SafetensorsFile(*testing::find_golden("data/train_tokens_512.safetensors")).integers("tokens");
  const int ranks = testing::session().world_size();
  // 33 tokens, and more that count for nothing where sequences are cut.
  constexpr Index kGoldenSeq = 33;
  for (const comm::MeshShape& shape :
       {comm::MeshShape{1, 0, 1, 1}, {0, 1, 1, 1}, {1, 1, 0, 1}, {1, 1, 1, 0}}) {
    comm::MeshShape mesh_shape = shape;
    for (int* const extent : {&mesh_shape.pp, &mesh_shape.dp, &mesh_shape.cp, &mesh_shape.tp})
      if (*extent == 0) *extent = ranks;
    if (mesh_shape.dp > 2 || mesh_shape.pp > 3 || mesh_shape.tp == 3) continue;
    for (const int stage : {0, 3}) {
      comm::Mesh mesh(testing::session(), mesh_shape, cartan::testing::test_device_kind());
      Config config;
      config.model = store::read_model_config(*folder_ / "config.json");
      config.model.lora.rank = golden["settings"]["rank"];
      config.model.lora.alpha = golden["settings"]["alpha"];
      config.data.seq = round_up(kGoldenSeq, Index{2} * mesh_shape.cp * mesh_shape.tp);
      config.batch = {2, 1};
      config.mesh = mesh.shape();
      config.zero.stage = stage;
      config.optim.clip = 1;
      config.optim.weight_decay = 0;
      config.run.device = cartan::testing::test_device_name();
      const auto device = cartan::testing::make_test_device(1);
      Engine engine(config, *device, mesh, ranks > 1);
      engine.state().clear();
      const ModelSource source(*folder_, mesh.world(), {.adapters = (*expected_ / "adapter_init").string()});
      source.load(config.model, engine.state());
      engine.state().refresh_compute();
      const auto step = [&](const std::vector<std::int32_t>& ids, Index update, double lr) {
        Index next = 0;
        return engine.train_step(update, lr, [&](data::MicroBatch& micro) {
          const LeafRange leaves = engine.share().of(next++);
          micro.first_leaf = leaves.begin;
          data::Batch& b = micro.batch;
          b = {};
          b.sequences = leaves.end - leaves.begin;
          b.seq = config.data.seq;
          for (Index s = leaves.begin; s < leaves.end; ++s)
            for (Index t = 0; t < b.seq; ++t) {
              const auto at = narrow<std::size_t>(s * kGoldenSeq + t);
              b.tokens.push_back(t < kGoldenSeq ? ids[at] : 0);
              b.targets.push_back(t + 1 < kGoldenSeq ? ids[at + 1] : data::kIgnoredTarget);
              b.positions.push_back(narrow<std::int32_t>(t));
              b.document_start.push_back(0);
            }
        });
      };
      const std::string where = fmt::format("{}, ZeRO {}", comm::to_string(mesh.shape()), stage);
      for (Index s = 0; s < 5; ++s) {
        const Json& expected = golden["steps"][narrow<std::size_t>(s)];
        const StepResult result =
            step({tokens.begin() + s * 66, tokens.begin() + (s + 1) * 66}, s + 1, expected["lr"]);
        EXPECT_NEAR(result.loss, expected["loss"].get<double>(), 1e-5) << where << ", step " << s;
        EXPECT_NEAR(result.grad_norm / expected["grad_norm"].get<double>(), 1.0, 1e-5)
            << where << ", step " << s;
      }
      const store::AdapterFolder final_adapters(*expected_ / "adapter_final");
      const Tensors found = gather_tensors(
          config.model, master_values(engine.state(), &shard::GradientPart::alone), mesh.world());
      double difference = 0, moved = 0;
      const store::AdapterFolder initial(*expected_ / "adapter_init");
      for (const auto& [name, values] : found) {
        std::vector<float> wanted(values.size()), before(values.size());
        final_adapters.read(name, 0, std::ssize(values), wanted.data());
        initial.read(name, 0, std::ssize(values), before.data());
        const Distance d = distance(values, wanted);
        EXPECT_LT(d.largest, 2e-4) << where << ", " << name;
        difference += d.difference * d.difference;
        moved += std::pow(distance(wanted, before).difference, 2);
      }
      EXPECT_LT(std::sqrt(difference / moved), 2e-4) << where;
      EXPECT_EQ(found.size(), 12u);

      // The gradients of the final adapters on the model's own input.
      const auto io = *testing::find_golden("expected/llama3-tiny/io.safetensors");
      const ModelSource final_source(*folder_, mesh.world(),
                                     {.adapters = (*expected_ / "adapter_final").string()});
      final_source.load(config.model, engine.state());
      engine.state().refresh_compute();
      const StepResult result = step(store::SafetensorsFile(io).integers("input_ids"), 6, 0.0);
      EXPECT_NEAR(result.loss, golden["final_loss_on_io"].get<double>(), 5e-6) << where;
      const store::SafetensorsFile gradients(*expected_ / "final_grads_on_io.safetensors");
      const Tensors own = gather_tensors(
          config.model, gradient_values(engine.state(), 1.0 / 64, &shard::GradientPart::alone), mesh.world());
      for (const auto& [name, values] : own) {
        const std::string prefix = "base_model.model.";
        const Distance d =
            distance(values, gradients.floats(gradients.contains(prefix + name) ? prefix + name : name));
        EXPECT_LT(d.largest, 2e-5) << where << ", " << name;
        EXPECT_LT(d.difference, 2e-5 * d.norm) << where << ", " << name;
      }
    }
  }
}

TEST_F(GoldenAdapters, AddUpToTheMergedWeights) {
  const auto alone = comm::make_local_communicator("test");
  const ModelSource source(*folder_, *alone, {.adapters = (*expected_ / "adapter_final").string()});
  const store::SafetensorsFile expected(*expected_ / "merged_layer0.safetensors");
  EXPECT_FALSE(expected.tensors().empty());
  for (const store::NamedTensor& tensor : expected.tensors()) {
    const std::vector<float> wanted = expected.floats(tensor.name);
    std::vector<float> found(wanted.size());
    const std::string name =
        tensor.name.starts_with("base_model.model.") ? tensor.name.substr(17) : tensor.name;
    // In pieces that begin in the middle of rows.
    for (Index first = 0; first < std::ssize(found); first += 1000)
      source.read_merged(name, first, std::min<Index>(1000, std::ssize(found) - first), found.data() + first);
    EXPECT_LT(distance(found, wanted).largest, 1e-6) << name;
  }
}

}  // namespace
}  // namespace cartan::train
