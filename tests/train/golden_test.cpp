// The whole model and the training step against Hugging Face transformers' numbers, on 1 and 2 ranks.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "cartan/comm/mesh_groups.hpp"
#include "cartan/core/json.hpp"
#include "cartan/core/narrow.hpp"
#include "cartan/optim/schedule.hpp"
#include "cartan/store/model_folder.hpp"
#include "cartan/train/engine.hpp"
#include "support/golden.hpp"
#include "support/mpi_session.hpp"
#include "support/test_device.hpp"
#include "train/device_batch.hpp"

namespace cartan {
namespace {

using testing::distance;
using testing::Distance;
using testing::find_golden;

std::vector<std::int32_t> read_ids(const std::filesystem::path& path, const std::string& name) {
  return store::SafetensorsFile(path).integers(name);
}

/// Sequences of `seq` tokens; targets are the labels one position further, or the tokens themselves where
/// there are none.
data::MicroBatch make_batch(const std::vector<std::int32_t>& ids, const std::vector<std::int32_t>& labels,
                            Index seq, Index first_leaf, Index sequences) {
  data::MicroBatch micro;
  micro.first_leaf = first_leaf;
  data::Batch& b = micro.batch;
  b.sequences = sequences;
  b.seq = seq;
  for (Index s = first_leaf; s < first_leaf + sequences; ++s) {
    for (Index t = 0; t < seq; ++t) {
      const auto at = static_cast<std::size_t>(s * seq + t);
      b.tokens.push_back(ids[at]);
      b.targets.push_back(t + 1 < seq ? labels[at + 1] : data::kIgnoredTarget);
      b.positions.push_back(narrow<std::int32_t>(t));
      b.document_start.push_back(0);
    }
  }
  return micro;
}

class Golden : public ::testing::TestWithParam<std::string> {
 protected:
  static train::Config config_for(const model::ModelConfig& model, Index global, Index micro) {
    train::Config config;
    config.model = model;
    config.run.device = cartan::testing::test_device_name();
    config.data.seq = 33;
    config.batch = {global, micro};
    config.mesh.dp = testing::session().world_size();
    config.optim.clip = 0;
    config.optim.fused = "never";  // the gradients are looked at afterwards
    config.zero.bucket_mb = 0.05;
    return config;
  }

  Golden()
      : mesh_(testing::session(), comm::MeshShape{1, testing::session().world_size(), 1, 1},
              cartan::testing::test_device_kind()),
        device_(cartan::testing::make_test_device(2)) {}

  /// One step on sequences [2, 33] or more in micro-batches of one or two sequences.
  train::StepResult step(train::Engine& engine, const std::vector<std::int32_t>& ids,
                         const std::vector<std::int32_t>& labels, Index update, double lr) {
    Index next = 0;
    return engine.train_step(update, lr, [&](data::MicroBatch& micro) {
      const LeafRange leaves = engine.share().of(next++);
      micro = make_batch(ids, labels, 33, leaves.begin, leaves.end - leaves.begin);
    });
  }

  std::vector<float> floats_of(const device::Matrix& m) {
    return cartan::testing::download<float>(*device_, m.data, narrow<std::size_t>(m.rows * m.cols));
  }

  comm::Mesh mesh_;
  std::unique_ptr<device::Device> device_;
};

TEST_P(Golden, LogitsHiddenStatesAndLossMatch) {
  const auto folder = *find_golden("models/" + GetParam());
  const auto io = *find_golden("expected/" + GetParam() + "/io.safetensors");
  const model::ModelConfig model = testing::read_hf_config(folder);
  const shard::FlatLayout layout(model);
  shard::FlatState state(layout, {DType::f32, 0}, *device_, mesh_.data_plane());
  testing::fill_parameters(state, testing::read_hf_tensors(folder));
  const std::vector<std::int32_t> ids = read_ids(io, "input_ids");
  data::MicroBatch micro = make_batch(ids, ids, 33, 0, 2);
  data::set_window(micro.batch, model.window);
  device::Arena arena(
      device_->allocate(std::size_t{64} << 20, device::MemoryKind::activations, "activations"));
  model::StageOptions options;
  options.micro = {2, 33};
  options.rope_positions = 33;
  options.head_slots = options.gradient_slots = 1;
  model::Stage stage(model, {0, model.layers + 2}, options, {}, {}, *device_, arena);
  model::Flight flight;
  const device::ArenaPiece integers = arena.take(train::batch_bytes(66, model.window > 0));
  flight.batch = train::upload(micro.batch, integers.data(), *device_);
  auto units = state.units();
  stage.forward(flight, units, true);
  const device::ArenaMatrix logits = arena.matrix(DType::f32, 66, model.vocab);
  stage.logits(flight, units, 0, logits);
  const store::SafetensorsFile expected(io);
  EXPECT_LT(distance(floats_of(logits), expected.floats("logits")).largest, 5e-5);

  stage.loss(flight, units);
  const auto rows = cartan::testing::download<float>(*device_, flight.row_loss.data, 66);
  EXPECT_NEAR(std::accumulate(rows.begin(), rows.end(), 0.0) / 64, expected.floats("loss")[0], 5e-6);

  const auto hidden_file = find_golden("expected/" + GetParam() + "/hidden.safetensors");
  if (!hidden_file) return;
  const store::SafetensorsFile hidden(*hidden_file);
  for (Index layer = 0; layer < model.layers; ++layer) {
    const device::Matrix& x = flight.blocks[narrow<std::size_t>(layer)].x;
    EXPECT_LT(distance(floats_of(x), hidden.floats("hidden." + std::to_string(layer))).largest, 5e-5)
        << "layer " << layer;
  }
}

TEST_P(Golden, EveryGradientMatches) {
  const auto expected_file = find_golden("expected/" + GetParam() + "/grads.safetensors");
  if (!expected_file) GTEST_SKIP() << "no golden gradients of " << GetParam() << " here";
  const auto folder = *find_golden("models/" + GetParam());
  const std::vector<std::int32_t> ids =
      read_ids(*find_golden("expected/" + GetParam() + "/io.safetensors"), "input_ids");
  for (const Index micro : {1, 2}) {
    const train::Config config = config_for(testing::read_hf_config(folder), 2, micro);
    train::Engine engine(config, *device_, mesh_, mesh_.world().size() > 1);
    engine.state().initialise(config.model, 1);
    testing::fill_parameters(engine.state(), testing::read_hf_tensors(folder));
    const train::StepResult result = step(engine, ids, ids, 1, 0.0);
    EXPECT_EQ(result.targets, 64);
    const train::Tensors expected = testing::read_expected(*expected_file, config.model);
    for (const auto& [name, gradient] : testing::gradient_values(engine.state(), 1.0 / 64)) {
      const Distance d = distance(gradient, expected.at(name));
      EXPECT_LT(d.largest, 2e-5) << name;
      EXPECT_LT(d.difference, 2e-5 * d.norm) << name;
    }
  }
}

TEST_P(Golden, TenStepsOfAdamWMatch) {
  const auto folder = *find_golden("models/" + GetParam());
  const Json golden = read_json(*find_golden("expected/" + GetParam() + "/train.json"));
  const std::vector<std::int32_t> tokens =
      read_ids(*find_golden("data/train_tokens_512.safetensors"), "tokens");
  train::Config config = config_for(testing::read_hf_config(folder), 2, 1);
  config.optim.clip = golden["hyper"]["clip"];
  config.optim.lr = golden["hyper"]["lr"];
  config.schedule.kind = "cosine";
  config.schedule.warmup = golden["hyper"]["warmup"];
  config.schedule.min_lr = golden["hyper"]["min_lr"];
  train::Engine engine(config, *device_, mesh_, mesh_.world().size() > 1);
  const auto initial = testing::read_hf_tensors(folder);
  engine.state().initialise(config.model, 1);
  testing::fill_parameters(engine.state(), initial);
  for (Index s = 0; s < 10; ++s) {
    const std::vector<std::int32_t> ids(tokens.begin() + s * 66, tokens.begin() + (s + 1) * 66);
    const Json& expected = golden["steps"][static_cast<std::size_t>(s)];
    const double lr = optim::learning_rate(config.schedule, config.optim.lr, s, 10);
    EXPECT_NEAR(lr, expected["lr"].get<double>(), 1e-12);
    const train::StepResult result = step(engine, ids, ids, s + 1, lr);
    EXPECT_NEAR(result.loss, expected["loss"].get<double>(), 1e-5) << "step " << s;
    EXPECT_NEAR(result.grad_norm / expected["grad_norm"].get<double>(), 1.0, 1e-5) << "step " << s;
  }
  const auto final_values = testing::master_values(engine.state());
  for (const store::FileTensor& tensor : store::file_tensors(config.model)) {
    double squares = 0;
    for (const store::FileTensor::Part& part : tensor.parts) {
      const std::vector<float>& values = final_values.at(part.parameter);
      squares += std::pow(distance(values, values).norm, 2);
    }
    const double norm = golden["final_param_norms"][tensor.name];
    EXPECT_NEAR(std::sqrt(squares) / norm, 1.0, 1e-5) << tensor.name;
  }

  const auto final_file = find_golden("expected/" + GetParam() + "/final.safetensors");
  if (!final_file) return;
  const train::Tensors expected = testing::read_expected(*final_file, config.model);
  double difference = 0, moved = 0;
  for (const auto& [name, values] : final_values) {
    const Distance d = distance(values, expected.at(name)), m = distance(expected.at(name), initial.at(name));
    EXPECT_LT(d.largest, 2e-4) << name;
    difference += d.difference * d.difference;
    moved += m.difference * m.difference;
  }
  EXPECT_LT(std::sqrt(difference / moved), 2e-4);
}

INSTANTIATE_TEST_SUITE_P(Models, Golden,
                         ::testing::ValuesIn(testing::golden_models({"io.safetensors", "train.json"})),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

class GoldenAccumulation : public Golden {};

TEST_P(GoldenAccumulation, UnequalMicroBatchesAreWeightedByTheirTargets) {
  const std::string folder = "expected/llama-tied-tiny-accumulation/";
  const Json golden = read_json(*find_golden(folder + "expected.json"))["cases"][GetParam()];
  const auto file = *find_golden(folder + GetParam() + ".safetensors");
  const auto model_folder = *find_golden("models/llama-tied-tiny");
  const train::Config config = config_for(testing::read_hf_config(model_folder), 8, 2);
  train::Engine engine(config, *device_, mesh_, mesh_.world().size() > 1);
  engine.state().initialise(config.model, 1);
  testing::fill_parameters(engine.state(), testing::read_hf_tensors(model_folder));
  const train::StepResult result =
      step(engine, read_ids(file, "input_ids"), read_ids(file, "labels"), 1, 0.0);
  EXPECT_EQ(result.targets, golden["total_tokens"].get<Index>());
  EXPECT_NEAR(result.loss, golden["loss"].get<double>(), 5e-6);
  EXPECT_NEAR(result.grad_norm / golden["grad_norm"].get<double>(), 1.0, 1e-5);
  if (const auto gradients = find_golden(folder + GetParam() + ".grads.safetensors")) {
    const train::Tensors expected = testing::read_expected(*gradients, config.model);
    for (const auto& [name, gradient] :
         testing::gradient_values(engine.state(), 1.0 / static_cast<double>(result.targets))) {
      const Distance d = distance(gradient, expected.at(name));
      EXPECT_LT(d.difference, 2e-5 * d.norm) << name;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Cases, GoldenAccumulation, ::testing::Values("uneven", "one_empty"),
                         [](const auto& test) { return test.param; });

class GoldenBf16 : public Golden {};

TEST_P(GoldenBf16, MixedPrecisionStaysNearTheReference) {
  const auto golden_file = find_golden("expected/llama3-tiny-bf16/losses.json");
  const auto folder = find_golden("models/llama3-tiny");
  if (!golden_file || !folder) GTEST_SKIP() << "the larger golden set is not here";
  const Json golden = read_json(*golden_file)["mixed_precision_training"];
  const std::vector<std::int32_t> tokens =
      read_ids(*find_golden("data/train_tokens_512.safetensors"), "tokens");
  train::Config config = config_for(testing::read_hf_config(*folder), 2, 1);
  config.precision.compute = "bf16";
  config.optim.clip = 1.0;
  train::Engine engine(config, *device_, mesh_, mesh_.world().size() > 1);
  engine.state().initialise(config.model, 1);
  testing::fill_parameters(engine.state(), testing::read_hf_tensors(*folder));
  for (Index s = 0; s < 10; ++s) {
    const std::vector<std::int32_t> ids(tokens.begin() + s * 66, tokens.begin() + (s + 1) * 66);
    const Json& expected = golden["steps"][static_cast<std::size_t>(s)];
    const train::StepResult result = step(engine, ids, ids, s + 1, expected["lr"].get<double>());
    EXPECT_NEAR(result.loss, expected["loss"].get<double>(), 0.02) << "step " << s;
    EXPECT_NEAR(result.grad_norm / expected["grad_norm"].get<double>(), 1.0, 0.03) << "step " << s;
  }
}
INSTANTIATE_TEST_SUITE_P(Llama3, GoldenBf16, ::testing::Values("llama3-tiny"),
                         [](const auto&) { return std::string("tiny"); });

}  // namespace
}  // namespace cartan
