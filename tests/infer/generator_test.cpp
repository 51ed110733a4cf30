// Texts on every mesh: against those of transformers, and against one rank.
#include "cartan/infer/generator.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "cartan/core/error.hpp"
#include "cartan/core/json.hpp"
#include "cartan/pipeline/cut.hpp"
#include "cartan/train/loaded_model.hpp"
#include "infer/decoder.hpp"
#include "support/golden.hpp"
#include "support/mpi_session.hpp"
#include "support/small_model.hpp"
#include "support/test_device.hpp"

namespace cartan::infer {
namespace {

using comm::MeshShape;
using Ids = std::vector<std::int32_t>;

/// Each mesh of the ranks of this test, one rank a replica first.
std::vector<MeshShape> meshes() {
  const int ranks = testing::session().world_size();
  std::vector<MeshShape> shapes{{1, ranks, 1, 1}};
  if (ranks == 1) return shapes;
  if (ranks <= 4) {
    shapes.push_back({1, 1, 1, ranks});
    shapes.push_back({1, 1, ranks, 1});
    if (ranks <= 3) shapes.push_back({ranks, 1, 1, 1});
  }
  if (ranks == 4) shapes.push_back({.pp = 1, .dp = 1, .cp = 1, .tp = 4, .tp_grid = "2x2"});
  for (int pp = 1; pp <= 2; ++pp)
    for (int dp = 1; dp <= 2; ++dp)
      for (int cp = 1; cp <= 3; ++cp)
        for (int tp = 1; tp <= 2; ++tp)
          if (ranks >= 4 && pp * dp * cp * tp == ranks) shapes.push_back({pp, dp, cp, tp});
  return shapes;
}

bool fits(const model::ModelConfig& config, const MeshShape& shape) {
  return config.heads % shape.tp == 0 && (config.kv_heads % shape.tp == 0 || shape.tp % config.kv_heads == 0);
}

/// A model of the golden data on a mesh of all ranks, or on each rank alone.
struct Loaded {
  Loaded(const std::string& name, const MeshShape& shape)
      : Loaded(name, comm::Mesh(testing::session(), shape, testing::test_device_kind())) {}
  explicit Loaded(const std::string& name) : Loaded(name, comm::Mesh::alone()) {}

  Generator generator(const GeneratorOptions& options) {
    return {model.config, *model.state, options, *device, mesh};
  }

  std::unique_ptr<device::Device> device = testing::make_test_device(1);
  comm::Mesh mesh;
  train::LoadedModel model;

 private:
  Loaded(const std::string& name, comm::Mesh mesh_)
      : mesh(std::move(mesh_)),
        model(train::load_model(*testing::find_golden("models/" + name), DType::f32, *device, mesh)) {}
};

GenerateOptions up_to(Index tokens, SamplingOptions sampling = {}, std::uint64_t seed = 1) {
  GenerateOptions options;
  options.max_new_tokens = tokens;
  options.sampling = sampling;
  options.seed = seed;
  return options;
}

Ids tokens_of(Generator& generator, const Ids& prompt, const GenerateOptions& options) {
  const Request request{prompt, options};
  return generator.generate({&request, 1}).front().tokens;
}

std::vector<Ids> tokens_of(Generator& generator, const std::vector<Request>& requests) {
  std::vector<Ids> tokens;
  for (const Continuation& one : generator.generate(requests)) tokens.push_back(one.tokens);
  return tokens;
}

/// `count` ids that follow no pattern of short period.
Ids some_prompt(Index count, std::int32_t first) {
  Ids ids;
  for (Index i = 0; i < count; ++i)
    ids.push_back(static_cast<std::int32_t>((first + 37 * i + i * i % 11) % 512));
  return ids;
}

/// Seven requests of different lengths and rules; one is shorter than a mesh has ranks of cp.
std::vector<Request> mixed_requests() {
  const SamplingOptions random{0.8, 0, 1.0};
  std::vector<Request> requests{{some_prompt(9, 3), up_to(12)},
                                {some_prompt(1, 77), up_to(5, random, 4)},
                                {some_prompt(40, 200), up_to(20, random, 5)},
                                {some_prompt(2, 9), up_to(30, {1.2, 50, 0.9}, 6)},
                                {some_prompt(33, 41), up_to(1)},
                                {some_prompt(17, 5), up_to(0)},
                                {some_prompt(23, 300), up_to(25, random, 7)}};
  requests[6].options.repetition_penalty = 1.4;
  requests[0].options.repetition_penalty = 1.1;
  return requests;
}

class GoldenGeneration : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenGeneration, GreedyContinuationsMatchOnEveryMesh) {
  const Json golden = read_json(*testing::find_golden("expected/" + GetParam() + "/generate.json"));
  Json cases = golden["cases"];
  // Prompts beyond the original length, and texts that grow past it.
  for (const char* more : {"cases_all_long", "cases_crossing"})
    if (golden.contains(more)) cases.insert(cases.end(), golden[more].begin(), golden[more].end());
  const model::ModelConfig config = testing::read_hf_config(*testing::find_golden("models/" + GetParam()));
  for (const MeshShape& shape : meshes()) {
    if (!fits(config, shape)) continue;
    Loaded model(GetParam(), shape);
    // Two texts at a time, in small pieces, then each alone and whole.
    for (const GeneratorOptions& how : {GeneratorOptions{84, 2, 5}, GeneratorOptions{84, 1, 128}}) {
      Generator generator = model.generator(how);
      std::vector<Request> requests;
      for (const Json& one : cases) {
        requests.push_back({one["prompt"].get<Ids>(), up_to(golden["new_tokens"])});
        // Ends with, and after, an end token.
        Request with_end = requests.back();
        with_end.options.end_tokens = {511, one["new_tokens"][5].get<std::int32_t>()};
        requests.push_back(with_end);
      }
      std::map<std::size_t, Ids> seen;
      const auto found = generator.generate(requests, [&](std::size_t number, std::int32_t token) {
        seen[number].push_back(token);
        return true;
      });
      for (std::size_t i = 0; i < found.size(); ++i) {
        Ids expected = cases[i / 2]["new_tokens"].get<Ids>();
        const auto& ends = requests[i].options.end_tokens;
        const auto end = std::find_first_of(expected.begin(), expected.end(), ends.begin(), ends.end());
        const bool is_cut = end != expected.end();
        if (is_cut) expected.erase(end + 1, expected.end());
        EXPECT_EQ(found[i].tokens, expected) << "case " << i / 2 << ", " << comm::to_string(shape);
        EXPECT_EQ(found[i].finish, is_cut ? Finish::end : Finish::length);
        EXPECT_EQ(seen[i], found[i].tokens);
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Models, GoldenGeneration,
                         ::testing::ValuesIn(testing::golden_models({"generate.json"})),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(Generator, LongPromptsInPiecesContinueLikeShortOnes) {
  Loaded model("llama-tied-tiny");
  Ids prompt(300);
  std::iota(prompt.begin(), prompt.end(), 100);
  Generator generator = model.generator({320});
  const Ids all = tokens_of(generator, prompt, up_to(8));
  // The same text as prompt plus its first continuation, which shifts every piece of the prefill.
  prompt.push_back(all[0]);
  EXPECT_EQ(tokens_of(generator, prompt, up_to(7)), Ids(all.begin() + 1, all.end()));
}

TEST(Generator, WhatATextBecomesDoesNotDependOnItsBatch) {
  // One whose keys turn otherwise as it grows, and one whose do not.
  for (const char* name : {"phi3-longrope-tiny", "qwen2-tiny"}) {
    Loaded model(name);
    const std::vector<Request> requests = mixed_requests();
    Generator alone = model.generator({60, 1, 7});
    std::vector<Ids> expected;
    for (const Request& request : requests)
      expected.push_back(tokens_of(alone, request.prompt, request.options));
    EXPECT_EQ(expected[2].size(), 20u);
    EXPECT_TRUE(expected[5].empty());
    for (const Index texts : {2, 3, 7}) {
      Generator together = model.generator({60, texts, 7});
      EXPECT_EQ(tokens_of(together, requests), expected) << name << ", " << texts << " texts";
    }
  }
}

TEST(Generator, RowsOfABatchHaveTheBitsOfOne) {
  Loaded model("qwen3-tiny");
  const std::vector<Ids> texts{some_prompt(9, 3), some_prompt(1, 5), some_prompt(70, 7)};
  const auto logits_of = [&](const std::vector<std::size_t>& which) {
    Decoder decoder(model.model.config, *model.model.state, {80, 4, 16}, *model.device, model.mesh);
    std::vector<Piece> newest;
    for (const std::size_t one : which) {
      const std::span<const std::int32_t> ids(texts[one]);
      Piece piece{std::ssize(newest), 0, 80, RopeTables::kNone, {}};
      decoder.tables().turn(piece.table, std::ssize(ids));
      const Index all = std::ssize(ids) - 1;
      for (; piece.cached < all; piece.cached += std::ssize(piece.tokens)) {
        piece.tokens = ids.subspan(static_cast<std::size_t>(piece.cached),
                                   static_cast<std::size_t>(std::min<Index>(16, all - piece.cached)));
        decoder.prefill(piece);
      }
      piece.tokens = ids.last(1);
      newest.push_back(piece);
    }
    const device::Matrix logits = decoder.decode(newest);
    std::map<std::size_t, std::vector<float>> rows;
    for (std::size_t i = 0; i < which.size(); ++i)
      rows[which[i]] =
          testing::download<float>(*model.device, logits.row_block(static_cast<Index>(i), 1).data,
                                   static_cast<std::size_t>(logits.cols));
    return rows;
  };
  const auto together = logits_of({2, 0, 1});
  for (std::size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(together.at(i), logits_of({i}).at(i)) << i;
}

/// Pipelines compute what one rank does. Products that are split over tp, and attention that is split over
/// cp, are summed in another order: logits move by some 1e-6, far less than what another token needs here.
TEST(Generator, RandomTextsAreThoseOfOneRank) {
  for (const char* name : {"llama-tied-tiny", "phi3-longrope-tiny"}) {
    Loaded alone(name);
    const std::vector<Request> requests = mixed_requests();
    Generator one = alone.generator({60, 3, 7});
    const std::vector<Ids> expected = tokens_of(one, requests);
    for (const MeshShape& shape : meshes()) {
      if (!fits(alone.model.config, shape)) continue;
      Loaded model(name, shape);
      for (const Index texts : {1, 3}) {
        Generator generator = model.generator({60, texts, 7});
        EXPECT_EQ(tokens_of(generator, requests), expected) << name << ", " << comm::to_string(shape);
      }
    }
  }
}

TEST(Generator, SizesThatDoNotDivideGiveTheTextsOfOneRank) {
  for (const bool tied : {false, true}) {
    model::ModelConfig config = testing::small_model(5, tied);
    config.init_std = 0.4;
    const auto device = testing::make_test_device(1);
    const auto texts_on = [&](comm::Mesh& mesh) {
      const auto stages = pipeline::cut_units(config, 1, mesh.shape().pp, "layers");
      const shard::FlatLayout layout(
          config, shard::units_of_stages(config, {stages[static_cast<std::size_t>(mesh.coordinate().pp)]}),
          shard::GradientLife::step, {}, {mesh.coordinate().tp, mesh.shape().columns()});
      const auto plane = comm::make_local_communicator("test");
      shard::FlatState state(layout, {DType::f32, 0}, *device, *plane);
      state.initialise(config, 3);
      state.refresh_compute();
      Generator generator(config, state, {40, 2, 4}, *device, mesh);
      return tokens_of(
          generator,
          {{{3, 56, 0, 11, 20, 41, 7}, up_to(30)}, {{9}, up_to(20, {0.9, 0, 1.0}, 2)}, {{1, 2}, up_to(11)}});
    };
    comm::Mesh alone = comm::Mesh::alone();
    const std::vector<Ids> expected = texts_on(alone);
    for (const MeshShape& shape : meshes()) {
      if (!fits(config, shape)) continue;
      comm::Mesh mesh(testing::session(), shape, testing::test_device_kind());
      EXPECT_EQ(texts_on(mesh), expected) << comm::to_string(shape);
    }
  }
}

TEST(Generator, WindowsThatPassWholeRanksGiveTheTextsOfOneRank) {
  // Most of the prompt is out of sight at its end: of some ranks of cp nothing is seen.
  const auto narrow_windows = [](Loaded& model) {
    model.model.config.window = 6;
    model.model.config.window_layers = "0,2-3";
  };
  const std::vector<Request> requests{{some_prompt(50, 8), up_to(12)},
                                      {some_prompt(4, 90), up_to(20, {0.8, 0, 1.0}, 3)}};
  Loaded alone("llama-tied-tiny");
  Generator full = alone.generator({64, 2, 16});
  const std::vector<Ids> unlimited = tokens_of(full, requests);
  narrow_windows(alone);
  Generator one = alone.generator({64, 2, 16});
  const std::vector<Ids> expected = tokens_of(one, requests);
  EXPECT_NE(expected[0], unlimited[0]);
  for (const MeshShape& shape : meshes()) {
    if (!fits(alone.model.config, shape)) continue;
    Loaded model("llama-tied-tiny", shape);
    narrow_windows(model);
    Generator generator = model.generator({64, 2, 16});
    EXPECT_EQ(tokens_of(generator, requests), expected) << comm::to_string(shape);
  }
}

TEST(Generator, RanksOfCpShareTheMemoryOfKeysAndValues) {
  comm::Session& session = testing::session();
  const auto held = [&](const MeshShape& shape, const GeneratorOptions& options) {
    Loaded model("llama-tied-tiny", shape);
    const std::size_t before = model.device->ledger().current().total();
    const Generator generator = model.generator(options);
    return model.device->ledger().current().total() - before;
  };
  const int ranks = session.world_size();
  const std::size_t whole = held({1, ranks, 1, 1}, {960, 4, 8}), cut = held({1, 1, ranks, 1}, {960, 4, 8});
  // Four layers of 64 columns, keys and values: what the others keep. What stays are a rotary table and the
  // activations, with partial results of all ranks.
  const std::size_t caches = std::size_t{960} * 4 * 4 * 2 * 64 * sizeof(float);
  EXPECT_LT(cut, whole - caches + caches / static_cast<std::size_t>(ranks) + caches / 8);
}

TEST(Generator, RandomTokensDependOnSeedAndPosition) {
  Loaded model("llama-tied-tiny");
  Generator generator = model.generator({40});
  const Ids prompt{3, 4, 5};
  const Ids greedy = tokens_of(generator, prompt, up_to(6));
  EXPECT_EQ(tokens_of(generator, prompt, up_to(6, {2.0, 1, 1.0})), greedy);  // of one token
  const SamplingOptions rule{2.0, 100, 0.95};
  const Ids random = tokens_of(generator, prompt, up_to(6, rule));
  EXPECT_EQ(tokens_of(generator, prompt, up_to(6, rule)), random);
  EXPECT_NE(random, greedy);
  EXPECT_NE(tokens_of(generator, prompt, up_to(6, rule, 2)), random);
  // A prompt that ends later leaves the later tokens as they are.
  const Ids longer{3, 4, 5, random[0], random[1]};
  EXPECT_EQ(tokens_of(generator, longer, up_to(4, rule)), Ids(random.begin() + 2, random.end()));
}

TEST(Generator, RepeatsBecomeRare) {
  Loaded model("qwen2-tiny");
  Generator generator = model.generator({60, 2});
  const Ids prompt = some_prompt(9, 3);
  Request plain{prompt, up_to(40)}, strict = plain;
  strict.options.repetition_penalty = 1e6;
  const auto found = generator.generate(std::vector<Request>{plain, strict});
  // As good as forbidden: none of the prompt and none twice, while the other text repeats itself.
  Ids all = prompt;
  all.insert(all.end(), found[1].tokens.begin(), found[1].tokens.end());
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end());
  Ids repeated = found[0].tokens;
  std::sort(repeated.begin(), repeated.end());
  EXPECT_NE(std::adjacent_find(repeated.begin(), repeated.end()), repeated.end());
}

TEST(Generator, TheCallerEndsATextAndTheNextTakesItsPlace) {
  Loaded model("llama-tied-tiny");
  Generator generator = model.generator({40, 2});
  const std::vector<Request> requests{{{3, 4, 5}, up_to(20)}, {{6}, up_to(20)}, {{7, 8}, up_to(4)}};
  const std::vector<Ids> whole = tokens_of(generator, requests);
  std::vector<std::size_t> counts(3, 0);
  const auto found = generator.generate(
      requests, [&](std::size_t number, std::int32_t) { return ++counts[number] < 3 || number == 2; });
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(found[i].tokens, Ids(whole[i].begin(), whole[i].begin() + 3));
    EXPECT_EQ(found[i].finish, Finish::stop);
  }
  EXPECT_EQ(found[2].tokens, whole[2]);
  EXPECT_EQ(found[2].finish, Finish::length);
}

TEST(Generator, NamesTheTextAndThePositionWhereLogitsAreNotFinite) {
  const auto folder = *testing::find_golden("models/llama-tied-tiny");
  auto tensors = testing::read_hf_tensors(folder);
  // The table is the head as well: each position has a logit of NaN.
  auto& table = tensors.at("model.embed_tokens.weight");
  table[7 * table.size() / 512] = std::numeric_limits<float>::quiet_NaN();
  for (const MeshShape& shape : meshes()) {
    if (shape.tp == 3) continue;
    Loaded model("llama-tied-tiny", shape);
    testing::fill_parameters(*model.model.state, tensors);
    Generator generator = model.generator({10});
    for (const double temperature : {0.0, 1.0}) {
      const Request request{{3, 4, 5}, up_to(4, {temperature, 0, 1.0}), "line 8"};
      try {
        generator.generate({&request, 1});
        FAIL() << "no error";
      } catch (const NumericError& error) {
        EXPECT_NE(std::string(error.what()).find("line 8: position 3:"), std::string::npos) << error.what();
      }
    }
  }
}

TEST(Generator, RefusesBadPromptsAndTooLongTexts) {
  Loaded model("llama-tied-tiny");
  Generator generator = model.generator({10});
  const auto message = [&](const Ids& prompt, Index tokens) -> std::string {
    const std::vector<Request> requests{{{1}, up_to(1)}, {prompt, up_to(tokens), "prompts.txt:2"}};
    bool was_asked = false;
    try {
      generator.generate(requests, [&](std::size_t, std::int32_t) { return was_asked = true; });
    } catch (const DataError& error) {
      EXPECT_FALSE(was_asked);
      return error.what();
    } catch (const ConfigError& error) {
      EXPECT_FALSE(was_asked);
      return error.what();
    }
    return {};
  };
  EXPECT_EQ(message({}, 1), "prompts.txt:2: the prompt is empty: give at least one token");
  EXPECT_EQ(message({3, 512}, 1),
            "prompts.txt:2: token 512 at position 1 is outside the model's vocabulary of 512");
  EXPECT_EQ(message({-1}, 1),
            "prompts.txt:2: token -1 at position 0 is outside the model's vocabulary of 512");
  EXPECT_EQ(message({3, 4}, 9),
            "prompts.txt:2: prompt and new tokens are 2 + 9, more than the 10 that there is room for");
  EXPECT_EQ(message({3, 4}, 8), "");
}

}  // namespace
}  // namespace cartan::infer
