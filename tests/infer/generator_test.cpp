#include "cartan/infer/generator.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "cartan/core/error.hpp"
#include "cartan/core/json.hpp"
#include "support/golden.hpp"
#include "support/test_device.hpp"

namespace cartan::infer {
namespace {

struct Loaded {
  explicit Loaded(const std::filesystem::path& folder)
      : config(testing::read_hf_config(folder)),
        device(cartan::testing::make_test_device(2)),
        plane(comm::make_local_communicator("test")),
        layout(config),
        state(layout, {DType::f32, 0}, *device, *plane) {
    testing::fill_parameters(state, testing::read_hf_tensors(folder));
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
  Generator generator(model.config, model.state, 41, *model.device);
  GenerateOptions options;
  options.max_new_tokens = golden["new_tokens"];
  for (const Json& one : golden["cases"]) {
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
