// Parameters from Hugging Face folders and checkpoints: each rank of each mesh gets its own.
#include "cartan/train/model_source.hpp"

#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>

#include "cartan/core/json.hpp"
#include "cartan/core/narrow.hpp"
#include "cartan/model/adapters.hpp"
#include "cartan/store/model_config_file.hpp"
#include "cartan/train/engine.hpp"
#include "cartan/train/evaluator.hpp"
#include "support/golden.hpp"
#include "support/mpi_session.hpp"
#include "support/test_device.hpp"

namespace cartan::train {
namespace {

using testing::find_golden;
using ::testing::HasSubstr;

Config config_on(const model::ModelConfig& model, comm::MeshShape shape, int zero) {
  Config config;
  config.model = model;
  config.run.device = cartan::testing::test_device_name();
  config.run.threads = 1;
  config.data.train = {"none"};
  config.data.seq = 32;
  config.batch.global = 4 * shape.dp;
  config.mesh = shape;
  config.zero.stage = zero;
  resolve(config, shape.size());
  return config;
}

class ModelSourceTest : public ::testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path folder_ = *find_golden("models/" + GetParam());
  comm::Session& session_ = testing::session();
};

TEST_P(ModelSourceTest, EveryMeshAndZeroStageHoldsTheParametersOfTheFiles) {
  const Tensors expected = testing::read_hf_tensors(folder_);
  const int ranks = session_.world_size();
  std::vector<comm::MeshShape> shapes{{1, ranks, 1, 1}, {1, 1, 1, ranks}, {1, 1, ranks, 1}};
  if (session_.thread_multiple()) shapes.push_back({ranks, 1, 1, 1});
  const auto device = cartan::testing::make_test_device(1);
  for (const comm::MeshShape& shape : shapes)
    for (const int zero : {0, 3}) {
      comm::Mesh mesh(session_, shape, cartan::testing::test_device_kind());
      const ModelSource source(folder_, mesh.world());
      Config config;
      try {
        config = config_on(source.config(), shape, zero);
      } catch (const ConfigError&) {
        continue;  // not for this model
      }
      Engine engine(config, *device, mesh, session_.thread_multiple() && ranks > 1);
      engine.state().clear();
      source.load(config.model, engine.state());
      engine.state().refresh_compute();
      const Tensors held = gather_tensors(
          config.model, master_values(engine.state(), &shard::GradientPart::alone), mesh.world());
      for (const auto& [name, values] : expected)
        EXPECT_EQ(held.at(name), values) << name << " on " << comm::to_string(shape) << ", ZeRO " << zero;
    }
}

/// What a state keeps of the parameters that nobody trains, in fp32, as tensors that are zero elsewhere.
Tensors kept_values(const shard::FlatState& state) {
  Tensors tensors;
  shard::for_each_frozen_part(state.layout(),
                              [&](std::size_t unit, const model::ParameterSpec& p, Index begin, Index end) {
                                if (!p.stands_alone || state.layout().units()[unit].is_copy) return;
                                const auto values = cartan::testing::download<float>(
                                    state.device(), state.frozen(unit, p.offset + begin, end - begin).data,
                                    narrow<std::size_t>(end - begin));
                                Index elements = 1;
                                for (const Index size : p.shape) elements *= size;
                                std::vector<float>& tensor = tensors[p.name];
                                tensor.resize(narrow<std::size_t>(elements));
                                model::for_each_run(p, begin, end, [&](Index whole, Index part, Index count) {
                                  std::copy_n(values.begin() + (part - begin), count, tensor.begin() + whole);
                                });
                              });
  return tensors;
}

TEST_P(ModelSourceTest, ALoadedModelTakesTheMemoryOfItsTypeOnly) {
  comm::Mesh alone = comm::Mesh::alone();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto device = cartan::testing::make_test_device(1);
    const std::size_t before = device->ledger().current().total();
    const LoadedModel model = load_model(folder_, dtype, *device, alone);
    const std::size_t bytes = device->ledger().current().total() - before;
    const auto needed = narrow<std::size_t>(model::parameter_count(model.config)) * size_of(dtype);
    EXPECT_GE(bytes, needed);
    // Units are rounded up.
    EXPECT_LE(bytes, needed + 4096 * narrow<std::size_t>(model.config.layers + 2));
  }
}

TEST_P(ModelSourceTest, ALoadedModelHasTheUnitsAndSlicesOfItsPlaceOnly) {
  const Tensors expected = testing::read_hf_tensors(folder_);
  const int ranks = session_.world_size();
  std::vector<comm::MeshShape> shapes{{1, ranks, 1, 1}, {1, 1, ranks, 1}, {ranks, 1, 1, 1}};
  if (ranks == 2) shapes.push_back({1, 1, 1, 2});
  const auto device = cartan::testing::make_test_device(3);
  for (const comm::MeshShape& shape : shapes) {
    comm::Mesh mesh(session_, shape, cartan::testing::test_device_kind());
    const LoadedModel model = load_model(folder_, DType::f32, *device, mesh);
    // Replicas hold the same, so one at a time is put together.
    const int replica = mesh.coordinate().dp + mesh.coordinate().cp;
    for (int one = 0; one < shape.dp * shape.cp; ++one) {
      const Tensors mine = one == replica ? kept_values(*model.state) : Tensors{};
      EXPECT_EQ(gather_tensors(model::without_adapters(model.config), mine, mesh.world()), expected)
          << comm::to_string(shape);
    }
    // A copy of a tied embedding is the only unit that two stages have.
    const Index copies = model.layout->units().front().is_copy ? 1 : 0;
    EXPECT_EQ(std::ssize(model.layout->units()), model.stage.end - model.stage.first + copies);
    Index elements = 0;
    for (const shard::FlatUnit& unit : model.layout->units()) elements += unit.spec->elements;
    if (shape.tp > 1) {
      EXPECT_LT(elements, model::parameter_count(model.config));
    }
  }
}

TEST(ModelSource, AMeshThatCannotSplitTheModelIsRefusedBeforeItIsRead) {
  comm::Session& session = testing::session();
  if (session.world_size() != 3) GTEST_SKIP() << "needs 3 ranks";
  comm::Mesh mesh(session, {1, 1, 1, 3}, cartan::testing::test_device_kind());
  const auto device = cartan::testing::make_test_device(1);
  try {
    load_model(*find_golden("models/llama-tied-tiny"), DType::f32, *device, mesh);
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("mesh.tp = 3 cannot split model.heads = 4"), std::string::npos)
        << error.what();
  }
}

TEST_P(ModelSourceTest, DescribesItAlikeWithTheEntriesOfTransformers4And5) {
  const auto newer = find_golden("models/" + GetParam() + "/config.v5.json");
  if (!newer) GTEST_SKIP() << "no config.v5.json of " << GetParam() << " here";
  EXPECT_EQ(model::to_json(store::read_model_config(*newer)), model::to_json(describe_model(folder_)));
}

INSTANTIATE_TEST_SUITE_P(Models, ModelSourceTest,
                         ::testing::Values("llama-tied-tiny", "qwen2-tiny", "phi3-longrope-tiny"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(ModelSource, LongSequencesTurnByTheLongFactors) {
  const auto device = cartan::testing::make_test_device(2);
  comm::Mesh alone = comm::Mesh::alone();
  const LoadedModel model = load_model(*find_golden("models/phi3-longrope-tiny"), DType::f32, *device, alone);
  for (const char* name : {"io", "io_long"}) {
    const store::SafetensorsFile io(
        *find_golden(fmt::format("expected/phi3-longrope-tiny/{}.safetensors", name)));
    const std::vector<std::int32_t> ids = io.integers("input_ids");
    const std::vector<float> expected = io.floats("logits");
    const auto length = static_cast<std::size_t>(io.tensor("input_ids").shape[1]);
    for (std::size_t first = 0; first < ids.size(); first += length) {
      const SequenceResult result =
          evaluate_ids(model, std::span(ids).subspan(first, length), true, {*device, alone});
      const auto begin = expected.begin() + static_cast<std::ptrdiff_t>(first * 512);
      EXPECT_LT(distance(result.logits, {begin, begin + static_cast<std::ptrdiff_t>(length * 512)}).largest,
                5e-5)
          << name;
    }
  }
}

TEST(ModelSource, AnotherModelIsRefusedWithWhatDiffers) {
  const auto alone = comm::make_local_communicator("test");
  const ModelSource source(*find_golden("models/llama-tied-tiny"), *alone);
  model::ModelConfig other = source.config();
  other.layers = 7;
  other.window = 5;
  other.init_std = 1;
  const auto device = cartan::testing::make_test_device(1);
  const shard::FlatLayout layout(other);
  shard::FlatState state(layout, {DType::f32, 0}, *device, *alone);
  try {
    source.load(other, state);
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("holds layers = 4, the configuration says 7"));
    EXPECT_THAT(error.what(), HasSubstr("holds window = nothing, the configuration says 5"));
    EXPECT_THAT(error.what(), ::testing::Not(HasSubstr("init_std")));
  }
}

TEST(ModelSource, WhatIsNoModelIsMissing) {
  const auto alone = comm::make_local_communicator("test");
  const std::filesystem::path empty =
      std::filesystem::path(::testing::TempDir()) / fmt::format("empty{}", ::getpid());
  std::filesystem::create_directories(empty);
  EXPECT_THROW(describe_model(empty), MissingError);
  EXPECT_THROW(describe_model(empty / "nothing.h5"), MissingError);
  EXPECT_THROW(ModelSource(empty, *alone), MissingError);
  std::filesystem::remove(empty);
}

}  // namespace
}  // namespace cartan::train
