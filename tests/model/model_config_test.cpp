#include <gmock/gmock.h>

#include <cmath>
#include <numbers>

#include "cartan/core/json.hpp"
#include "cartan/model/block.hpp"
#include "cartan/model/config.hpp"

namespace cartan::model {
namespace {

using ::testing::HasSubstr;

TEST(ModelConfig, PresetsAreConsistentAndHaveTheirPublishedSizes) {
  for (const std::string& name : preset_names()) {
    ModelConfig config = preset(name);
    config.derive(257);
    Problems problems;
    check(config, problems);
    EXPECT_TRUE(problems.empty()) << name;
  }
  const auto parameters = [](const char* name) {
    ModelConfig config = preset(name);
    config.derive(257);
    return parameter_count(config);
  };
  // Sums of the shapes in the published checkpoints.
  EXPECT_EQ(parameters("llama3-8b"), 8030261248);
  EXPECT_EQ(parameters("llama2-7b"), 6738415616);
  EXPECT_EQ(parameters("llama3.2-1b"), 1235814400);
  EXPECT_EQ(parameters("smollm2-135m"), 134515008);
  EXPECT_EQ(parameters("qwen2.5-0.5b"), 494032768);
  EXPECT_EQ(parameters("qwen3-0.6b"), 596049920);
}

TEST(ModelConfig, UnknownPresetsNameTheNearest) {
  try {
    preset("llama3-8");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("did you mean llama3-8b?"));
  }
}

TEST(ModelConfig, ProblemsNameKeyAndValue) {
  ModelConfig config;
  config.heads = 6;
  config.kv_heads = 4;
  config.head_dim = 5;
  config.vocab = 10;
  config.rope_scaling.kind = "yarn";
  Problems problems;
  check(config, problems);
  std::string all;
  for (const std::string& line : problems.lines()) all += line + "\n";
  EXPECT_THAT(all, HasSubstr("model.heads = 6 is not divisible by model.kv-heads = 4: use 1, 2, 3, 6"));
  EXPECT_THAT(all, HasSubstr("model.head-dim = 5 is odd"));
  EXPECT_THAT(all, HasSubstr("model.rope-scaling = yarn"));

  ModelConfig uneven;
  uneven.hidden = 100;
  uneven.heads = 6;
  uneven.derive(10);
  Problems divisibility;
  check(uneven, divisibility);
  ASSERT_EQ(divisibility.lines().size(), 1u);
  EXPECT_THAT(divisibility.lines()[0], HasSubstr("model.hidden = 100 is not divisible by model.heads = 6"));
}

TEST(ModelConfig, JsonRoundTripsAndRefusesWhatIsMissing) {
  ModelConfig config = preset("llama3.2-1b");
  config.derive(0);
  const Json json = to_json(config);
  EXPECT_EQ(to_json(model_config_from_json(json, "test")), json);
  for (const auto& [key, value] : json.items()) {
    Json damaged = json;
    damaged.erase(key);
    EXPECT_THROW(model_config_from_json(damaged, "test"), DataError) << key;
    damaged[key] = "text";
    EXPECT_THROW(model_config_from_json(damaged, "test"), DataError) << key;
  }
  EXPECT_THROW(model_config_from_json(Json::array(), "test"), DataError);
}

TEST(Rope, PlainFrequenciesFallFromOneByPowersOfTheta) {
  ModelConfig config;
  config.head_dim = 8;
  config.rope_theta = 10000;
  const std::vector<double> frequencies = rope_frequencies(config);
  ASSERT_EQ(frequencies.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_NEAR(frequencies[i], std::pow(10.0, -static_cast<double>(i)), 1e-15);
}

TEST(Rope, Llama3ScalingKeepsFastAndStretchesSlowChannels) {
  ModelConfig plain;
  plain.head_dim = 64;
  plain.rope_theta = 500000;
  ModelConfig scaled = plain;
  scaled.rope_scaling = {"llama3", 8.0, 1.0, 4.0, 8192};
  const std::vector<double> before = rope_frequencies(plain), after = rope_frequencies(scaled);
  for (std::size_t i = 0; i < before.size(); ++i) {
    const double turns = 8192 * before[i] / (2 * std::numbers::pi);
    if (turns >= 4) {
      EXPECT_EQ(after[i], before[i]);
    }
    if (turns <= 1) {
      EXPECT_DOUBLE_EQ(after[i], before[i] / 8);
    }
    EXPECT_LE(after[i], before[i]);
    EXPECT_GE(after[i], before[i] / 8);
  }
}

TEST(Flops, CountSixForEachWeightOfAProduct) {
  ModelConfig config;
  config.hidden = 4;
  config.layers = 1;
  config.heads = 2;
  config.kv_heads = 1;
  config.head_dim = 3;
  config.ffn = 5;
  config.vocab = 7;
  // q and o 4 x 6 each, k and v 4 x 3 each, three 4 x 5, head 7 x 4; attention 6 * length * 6.
  const double weights = 2 * 24 + 2 * 12 + 3 * 20 + 28;
  EXPECT_EQ(flops_per_token(config, 10).causal, 6 * weights + 6 * 10 * 6);
  EXPECT_EQ(flops_per_token(config, 10).full, 6 * weights + 12 * 10 * 6);
}

}  // namespace
}  // namespace cartan::model
