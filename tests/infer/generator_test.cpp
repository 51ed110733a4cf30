#include "cartan/infer/generator.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "cartan/core/error.hpp"
#include "cartan/core/json.hpp"
#include "support/golden.hpp"
#include "support/test_device.hpp"

namespace cartan::infer {
namespace {

struct Loaded {
  explicit Loaded(const std::filesystem::path& folder) : Loaded(folder, testing::read_hf_tensors(folder)) {}
  Loaded(const std::filesystem::path& folder, const std::map<std::string, std::vector<float>>& tensors)
      : config(testing::read_hf_config(folder)),
        device(cartan::testing::make_test_device(2)),
        plane(comm::make_local_communicator("test")),
        layout(config),
        state(layout, {DType::f32, 0}, *device, *plane) {
    testing::fill_parameters(state, tensors);
  }
  model::ModelConfig config;
  std::unique_ptr<device::Device> device;
  std::unique_ptr<comm::Communicator> plane;
  shard::FlatLayout layout;
  shard::FlatState state;
};

class GoldenGeneration : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenGeneration, GreedyContinuationsMatch) {
  Loaded model(*testing::find_golden("models/" + GetParam()));
  const Json golden = read_json(*testing::find_golden("expected/" + GetParam() + "/generate.json"));
  Generator generator(model.config, model.state, 84, *model.device);
  GenerateOptions options;
  options.max_new_tokens = golden["new_tokens"];
  Json cases = golden["cases"];
  // Prompts beyond the original length, and texts that grow past it.
  for (const char* more : {"cases_all_long", "cases_crossing"})
    if (golden.contains(more)) cases.insert(cases.end(), golden[more].begin(), golden[more].end());
  for (const Json& one : cases) {
    const auto prompt = one["prompt"].get<std::vector<std::int32_t>>();
    std::vector<std::int32_t> seen;
    const auto tokens =
        generator.generate(prompt, options, [&](std::int32_t token) { seen.push_back(token); });
    EXPECT_EQ(tokens, one["new_tokens"].get<std::vector<std::int32_t>>());
    EXPECT_EQ(seen, tokens);
    // Ends with, and after, the end token.
    GenerateOptions with_end = options;
    with_end.end_token = tokens[5];
    const auto cut = generator.generate(prompt, with_end);
    const auto stop = std::find(tokens.begin(), tokens.end(), with_end.end_token) + 1;
    EXPECT_EQ(cut, std::vector<std::int32_t>(tokens.begin(), stop));
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
  Loaded model(*testing::find_golden("models/llama-tied-tiny"));
  std::vector<std::int32_t> prompt(300);
  std::iota(prompt.begin(), prompt.end(), 100);
  Generator generator(model.config, model.state, 320, *model.device);
  GenerateOptions options;
  options.max_new_tokens = 8;
  const auto all = generator.generate(prompt, options);
  // The same text as prompt plus its first continuation, which shifts every piece of the prefill.
  prompt.push_back(all[0]);
  options.max_new_tokens = 7;
  const auto rest = generator.generate(prompt, options);
  EXPECT_TRUE(std::equal(rest.begin(), rest.end(), all.begin() + 1));
}

TEST(Generator, RandomTokensDependOnSeedAndPosition) {
  Loaded model(*testing::find_golden("models/llama-tied-tiny"));
  Generator generator(model.config, model.state, 40, *model.device);
  const std::vector<std::int32_t> prompt{3, 4, 5};
  GenerateOptions options{6, {}, 1, -1};
  const auto greedy = generator.generate(prompt, options);
  options.sampling = {2.0, 1, 1.0};  // of one token
  EXPECT_EQ(generator.generate(prompt, options), greedy);
  options.sampling = {2.0, 100, 0.95};
  const auto random = generator.generate(prompt, options);
  EXPECT_EQ(generator.generate(prompt, options), random);
  EXPECT_NE(random, greedy);
  options.seed = 2;
  EXPECT_NE(generator.generate(prompt, options), random);
  // A prompt that ends later leaves the later tokens as they are.
  options.seed = 1;
  const std::vector<std::int32_t> longer{3, 4, 5, random[0], random[1]};
  options.max_new_tokens = 4;
  EXPECT_EQ(generator.generate(longer, options), std::vector<std::int32_t>(random.begin() + 2, random.end()));
}

TEST(Generator, NamesThePositionWhereLogitsAreNotFinite) {
  const auto folder = *testing::find_golden("models/llama-tied-tiny");
  auto tensors = testing::read_hf_tensors(folder);
  // The table is the head as well: each position has a logit of NaN.
  auto& table = tensors.at("model.embed_tokens.weight");
  const auto hidden = table.size() / 512;
  table[7 * hidden] = std::numeric_limits<float>::quiet_NaN();
  Loaded model(folder, tensors);
  Generator generator(model.config, model.state, 10, *model.device);
  const std::vector<std::int32_t> prompt{3, 4, 5};
  for (const double temperature : {0.0, 1.0}) {
    try {
      generator.generate(prompt, {4, {temperature, 0, 1.0}, 1, -1});
      FAIL() << "no error";
    } catch (const NumericError& error) {
      EXPECT_NE(std::string(error.what()).find("position 3:"), std::string::npos) << error.what();
    }
  }
}

TEST(Generator, RefusesBadPromptsAndTooLongTexts) {
  Loaded model(*testing::find_golden("models/llama-tied-tiny"));
  Generator generator(model.config, model.state, 10, *model.device);
  EXPECT_THROW(generator.generate({}, {}), DataError);
  const std::vector<std::int32_t> foreign{3, 512};
  EXPECT_THROW(generator.generate(foreign, {}), DataError);
  const std::vector<std::int32_t> good{3, 4};
  EXPECT_THROW(generator.generate(good, {9, {}, 1, -1}), ConfigError);
  EXPECT_EQ(generator.generate(good, {8, {}, 1, -1}).size(), 8u);
}

}  // namespace
}  // namespace cartan::infer
