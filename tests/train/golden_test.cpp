// The whole model, its evaluation and the training step against Hugging Face transformers' numbers, on one
// rank and on meshes with every axis.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "cartan/comm/mesh_groups.hpp"
#include "cartan/core/json.hpp"
#include "cartan/core/narrow.hpp"
#include "cartan/optim/schedule.hpp"
#include "cartan/store/model_folder.hpp"
#include "cartan/train/evaluator.hpp"
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

constexpr Index kSeq = 33;

/// Sequences of kSeq tokens, and rows without target up to `seq`; targets are the labels one position
/// further.
data::MicroBatch make_batch(const std::vector<std::int32_t>& ids, const std::vector<std::int32_t>& labels,
                            Index seq, Index first_leaf, Index sequences) {
  data::MicroBatch micro;
  micro.first_leaf = first_leaf;
  data::Batch& b = micro.batch;
  b.sequences = sequences;
  b.seq = seq;
  for (Index s = first_leaf; s < first_leaf + sequences; ++s) {
    for (Index t = 0; t < seq; ++t) {
      const auto at = static_cast<std::size_t>(s * kSeq + t);
      b.tokens.push_back(t < kSeq ? ids[at] : 0);
      b.targets.push_back(t + 1 < kSeq ? labels[at + 1] : data::kIgnoredTarget);
      b.positions.push_back(narrow<std::int32_t>(t));
      b.document_start.push_back(0);
    }
  }
  return micro;
}

/// Meshes of all ranks of the test; of pp only where MPI allows it.
std::vector<comm::MeshShape> meshes() {
  const int ranks = testing::session().world_size();
  std::vector<comm::MeshShape> shapes;
  if (ranks <= 2) shapes.push_back({1, ranks, 1, 1});
  if (ranks == 2 || ranks == 4) shapes.push_back({1, 1, 1, ranks});
  if (ranks == 2 || ranks == 3) shapes.push_back({1, 1, ranks, 1});
  if (ranks == 4) shapes.push_back({1, 1, 2, 2});
  if (!testing::session().thread_multiple()) return shapes;
  if (ranks == 2 || ranks == 3) shapes.push_back({ranks, 1, 1, 1});
  if (ranks == 4) shapes.push_back({2, 1, 1, 2});
  return shapes;
}

class Golden : public ::testing::TestWithParam<std::string> {
 protected:
  static train::Config config_for(const model::ModelConfig& model, Index global, Index micro,
                                  const comm::MeshShape& shape) {
    train::Config config;
    config.model = model;
    config.run.device = cartan::testing::test_device_name();
    // A length that cp and tp can cut.
    config.data.seq = shape.cp * shape.tp > 1 ? 36 : kSeq;
    config.batch = {global, micro};
    config.mesh = shape;
    config.optim.clip = 0;
    config.optim.fused = "never";  // the gradients are looked at afterwards
    config.zero.bucket_mb = 0.05;
    return config;
  }

  static comm::MeshShape replicas() { return {1, testing::session().world_size(), 1, 1}; }
  static comm::Mesh make_mesh(const comm::MeshShape& shape) {
    return {testing::session(), shape, cartan::testing::test_device_kind()};
  }

  /// One step on sequences [2, 33] or more in micro-batches of one or two sequences.
  train::StepResult step(train::Engine& engine, const std::vector<std::int32_t>& ids,
                         const std::vector<std::int32_t>& labels, Index seq, Index update, double lr) {
    Index next = 0;
    return engine.train_step(update, lr, [&](data::MicroBatch& micro) {
      const LeafRange leaves = engine.share().of(next++);
      micro = make_batch(ids, labels, seq, leaves.begin, leaves.end - leaves.begin);
    });
  }

  std::vector<float> floats_of(const device::Matrix& m) {
    return cartan::testing::download<float>(*device_, m.data, narrow<std::size_t>(m.rows * m.cols));
  }

  std::unique_ptr<device::Device> device_ = cartan::testing::make_test_device(2);
};

TEST_P(Golden, LogitsHiddenStatesAndLossMatch) {
  const auto folder = *find_golden("models/" + GetParam());
  const auto io = *find_golden("expected/" + GetParam() + "/io.safetensors");
  const model::ModelConfig model = testing::read_hf_config(folder);
  const shard::FlatLayout layout(model);
  const auto alone = comm::make_local_communicator("test");
  shard::FlatState state(layout, {DType::f32, 0}, *device_, *alone);
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

TEST_P(Golden, AnEvaluationGivesLogitsAndLossOnEveryMesh) {
  const store::SafetensorsFile expected(*find_golden("expected/" + GetParam() + "/io.safetensors"));
  const std::vector<std::int32_t> ids = expected.integers("input_ids");
  const std::vector<float> logits = expected.floats("logits");
  const bool is_first = testing::session().rank() == 0;
  for (const comm::MeshShape& shape : meshes()) {
    SCOPED_TRACE(comm::to_string(shape));
    comm::Mesh mesh = make_mesh(shape);
    const train::LoadedModel model =
        train::load_model(*find_golden("models/" + GetParam()), DType::f32, *device_, mesh);
    const train::EvaluationPlace place{*device_, mesh, mesh.world().size() > 1};
    double loss = 0;
    for (std::size_t s = 0; s < 2; ++s) {
      const train::SequenceResult found =
          train::evaluate_ids(model, std::span(ids).subspan(s * kSeq, kSeq), true, place);
      EXPECT_EQ(found.loss.targets, 32);
      loss += found.loss.loss;
      const auto begin = logits.begin() + narrow<std::ptrdiff_t>(s * kSeq) * model.config.vocab;
      if (is_first)
        EXPECT_LT(distance(found.logits, {begin, begin + kSeq * model.config.vocab}).largest, 5e-5);
      else
        EXPECT_TRUE(found.logits.empty());
    }
    EXPECT_NEAR(loss / 64, expected.floats("loss")[0], 5e-6);
  }
}

TEST_P(Golden, EveryGradientMatches) {
  const auto expected_file = find_golden("expected/" + GetParam() + "/grads.safetensors");
  if (!expected_file) GTEST_SKIP() << "no golden gradients of " << GetParam() << " here";
  const auto folder = *find_golden("models/" + GetParam());
  const std::vector<std::int32_t> ids =
      read_ids(*find_golden("expected/" + GetParam() + "/io.safetensors"), "input_ids");
  const train::Tensors initial = testing::read_hf_tensors(folder);
  for (const comm::MeshShape& shape : meshes())
    for (const Index micro : {1, 2}) {
      SCOPED_TRACE(fmt::format("{}, micro-batches of {}", comm::to_string(shape), micro));
      const train::Config config = config_for(testing::read_hf_config(folder), 2, micro, shape);
      comm::Mesh mesh = make_mesh(shape);
      train::Engine engine(config, *device_, mesh, mesh.world().size() > 1);
      engine.state().initialise(config.model, 1);
      testing::fill_parameters(engine.state(), initial);
      const train::StepResult result = step(engine, ids, ids, config.data.seq, 1, 0.0);
      EXPECT_EQ(result.targets, 64);
      const train::Tensors expected = testing::read_expected(*expected_file, config.model);
      const train::Tensors found = testing::gather_tensors(
          config.model, testing::gradient_values(engine.state(), 1.0 / 64, &shard::GradientPart::alone),
          mesh.world());
      EXPECT_EQ(found.size(), expected.size());
      for (const auto& [name, gradient] : found) {
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
  const train::Tensors initial = testing::read_hf_tensors(folder);
  for (const comm::MeshShape& shape : meshes()) {
    SCOPED_TRACE(comm::to_string(shape));
    train::Config config = config_for(testing::read_hf_config(folder), 2, 1, shape);
    config.optim.clip = golden["hyper"]["clip"];
    config.optim.lr = golden["hyper"]["lr"];
    config.schedule.kind = "cosine";
    config.schedule.warmup = golden["hyper"]["warmup"];
    config.schedule.min_lr = golden["hyper"]["min_lr"];
    comm::Mesh mesh = make_mesh(shape);
    train::Engine engine(config, *device_, mesh, mesh.world().size() > 1);
    engine.state().initialise(config.model, 1);
    testing::fill_parameters(engine.state(), initial);
    for (Index s = 0; s < 10; ++s) {
      const std::vector<std::int32_t> ids(tokens.begin() + s * 66, tokens.begin() + (s + 1) * 66);
      const Json& expected = golden["steps"][static_cast<std::size_t>(s)];
      const double lr = optim::learning_rate(config.schedule, config.optim.lr, s, 10);
      EXPECT_NEAR(lr, expected["lr"].get<double>(), 1e-12);
      const train::StepResult result = step(engine, ids, ids, config.data.seq, s + 1, lr);
      EXPECT_NEAR(result.loss, expected["loss"].get<double>(), 1e-5) << "step " << s;
      EXPECT_NEAR(result.grad_norm / expected["grad_norm"].get<double>(), 1.0, 1e-5) << "step " << s;
    }
    const train::Tensors final_values = testing::gather_tensors(
        config.model, testing::master_values(engine.state(), &shard::GradientPart::alone), mesh.world());
    for (const store::FileTensor& tensor : store::file_tensors(config.model)) {
      double squares = 0;
      for (const store::FileTensor::Part& part : tensor.parts) {
        const std::vector<float>& values = final_values.at(part.parameter);
        squares += std::pow(distance(values, values).norm, 2);
      }
      const double norm = golden["final_param_norms"][tensor.name];
      // Keys' biases move all scores of a row nearly alike, so AdamW's steps on them are mostly rounding.
      const double tolerance = tensor.name.ends_with("k_proj.bias") ? 1e-4 : 1e-5;
      EXPECT_NEAR(std::sqrt(squares) / norm, 1.0, tolerance) << tensor.name;
    }

    const auto final_file = find_golden("expected/" + GetParam() + "/final.safetensors");
    if (!final_file) continue;
    const train::Tensors expected = testing::read_expected(*final_file, config.model);
    double difference = 0, moved = 0;
    for (const auto& [name, values] : final_values) {
      const Distance d = distance(values, expected.at(name)),
                     m = distance(expected.at(name), initial.at(name));
      EXPECT_LT(d.largest, 2e-4) << name;
      difference += d.difference * d.difference;
      moved += m.difference * m.difference;
    }
    EXPECT_LT(std::sqrt(difference / moved), 2e-4);
  }
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
  if (8 % testing::session().world_size() != 0) GTEST_SKIP() << "eight sequences";
  const train::Config config = config_for(testing::read_hf_config(model_folder), 8, 2, replicas());
  comm::Mesh mesh = make_mesh(replicas());
  train::Engine engine(config, *device_, mesh, mesh.world().size() > 1);
  engine.state().initialise(config.model, 1);
  testing::fill_parameters(engine.state(), testing::read_hf_tensors(model_folder));
  const train::StepResult result =
      step(engine, read_ids(file, "input_ids"), read_ids(file, "labels"), kSeq, 1, 0.0);
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
  if (testing::session().world_size() > 2) GTEST_SKIP() << "two sequences";
  train::Config config = config_for(testing::read_hf_config(*folder), 2, 1, replicas());
  config.precision.compute = "bf16";
  config.optim.clip = 1.0;
  comm::Mesh mesh = make_mesh(replicas());
  train::Engine engine(config, *device_, mesh, mesh.world().size() > 1);
  engine.state().initialise(config.model, 1);
  testing::fill_parameters(engine.state(), testing::read_hf_tensors(*folder));
  for (Index s = 0; s < 10; ++s) {
    const std::vector<std::int32_t> ids(tokens.begin() + s * 66, tokens.begin() + (s + 1) * 66);
    const Json& expected = golden["steps"][static_cast<std::size_t>(s)];
    const train::StepResult result = step(engine, ids, ids, kSeq, s + 1, expected["lr"].get<double>());
    EXPECT_NEAR(result.loss, expected["loss"].get<double>(), 0.02) << "step " << s;
    EXPECT_NEAR(result.grad_norm / expected["grad_norm"].get<double>(), 1.0, 0.03) << "step " << s;
  }
}
INSTANTIATE_TEST_SUITE_P(Llama3, GoldenBf16, ::testing::Values("llama3-tiny"),
                         [](const auto&) { return std::string("tiny"); });

}  // namespace
}  // namespace cartan
