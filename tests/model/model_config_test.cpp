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
  config.rope_scaling.kind = "su";
  Problems problems;
  check(config, problems);
  std::string all;
  for (const std::string& line : problems.lines()) all += line + "\n";
  EXPECT_THAT(all, HasSubstr("model.heads = 6 is not divisible by model.kv-heads = 4: use 1, 2, 3, 6"));
  EXPECT_THAT(all, HasSubstr("model.head-dim = 5 is odd"));
  EXPECT_THAT(all, HasSubstr("model.rope-scaling = su"));

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
  const std::vector<double> frequencies = rope_frequencies(config, 1);
  ASSERT_EQ(frequencies.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_NEAR(frequencies[i], std::pow(10.0, -static_cast<double>(i)), 1e-15);
}

TEST(Rope, Llama3ScalingKeepsFastAndStretchesSlowChannels) {
  ModelConfig plain;
  plain.head_dim = 64;
  plain.rope_theta = 500000;
  ModelConfig scaled = plain;
  scaled.rope_scaling.kind = "llama3";
  const std::vector<double> before = rope_frequencies(plain, 1), after = rope_frequencies(scaled, 1);
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

/// Made with transformers 5.24 (fp32): 16 channels, base 10000, 512 positions.
struct Scaling {
  const char* kind;
  Index length;
  double magnitude;
  std::vector<double> frequencies;
};

TEST(Rope, EveryScalingIsThatOfTransformers) {
  const std::vector<Scaling> all{{"linear",
                                  9,
                                  1,
                                  {0.25, 0.079056941, 0.0250000004, 0.00790569466, 0.00249999994,
                                   0.000790569466, 0.000250000012, 7.90569466e-05}},
                                 {"dynamic",
                                  512,
                                  1,
                                  {1.0, 0.316227764, 0.100000001, 0.0316227786, 0.00999999978, 0.00316227786,
                                   0.00100000005, 0.000316227786}},
                                 {"dynamic",
                                  700,
                                  1,
                                  {1.0, 0.277927697, 0.0772438124, 0.0214681942, 0.00596660608, 0.00165828515,
                                   0.00046088337, 0.000128092259}},
                                 {"yarn",
                                  9,
                                  1.2079441541679836,
                                  {1.0, 0.223994657, 0.0416666642, 0.00395284733, 0.00124999997,
                                   0.000395284733, 0.000125000006, 3.95284733e-05}},
                                 {"longrope",
                                  64,
                                  1.224744871391589,
                                  {1.0, 0.287479758, 0.0833333358, 0.0243252143, 0.00714285718, 0.00210818532,
                                   0.000624999986, 0.000186016332}},
                                 {"longrope",
                                  65,
                                  1.224744871391589,
                                  {0.5, 0.10540925, 0.0250000004, 0.00632455572, 0.00166666671,
                                   0.000451753964, 0.000125000006, 3.51364179e-05}}};
  for (const Scaling& expected : all) {
    ModelConfig config;
    config.head_dim = 16;
    config.max_length = 512;
    RopeScaling& rope = config.rope_scaling;
    rope.kind = expected.kind;
    rope.factor = rope.kind == "yarn" ? 8 : 4;
    rope.original_length = rope.kind == "dynamic" ? 512 : 64;
    rope.short_factors = {1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7};
    rope.long_factors = {2, 3, 4, 5, 6, 7, 8, 9};
    const std::vector<double> found = rope_frequencies(config, expected.length);
    ASSERT_EQ(found.size(), expected.frequencies.size());
    for (std::size_t i = 0; i < found.size(); ++i)
      EXPECT_NEAR(found[i] / expected.frequencies[i], 1, 1e-6) << expected.kind << " " << i;
    EXPECT_NEAR(rope_magnitude(config), expected.magnitude, 1e-14) << expected.kind;
  }
}

TEST(Rope, OnlyTheFirstChannelsTurnWhereRotaryDimSaysSo) {
  ModelConfig config;
  config.head_dim = 16;
  config.rotary_dim = 12;
  EXPECT_EQ(rope_frequencies(config, 1).size(), 6u);
  config.rotary_dim = 9;
  config.vocab = 5;
  config.kv_heads = 4;
  Problems problems;
  check(config, problems);
  ASSERT_EQ(problems.lines().size(), 1u);
  EXPECT_THAT(problems.lines()[0],
              HasSubstr("model.rotary-dim = 9: must be an even number from 0 to model.head-dim = 16"));
}

TEST(Windows, AreOfTheLayersThatAreNamed) {
  ModelConfig config;
  config.layers = 4;
  EXPECT_EQ(config.windowed_layers(), std::vector<bool>(4, false));
  config.window = 8;
  EXPECT_EQ(config.windowed_layers(), std::vector<bool>(4, true));
  config.window_layers = "1-2";
  EXPECT_EQ(config.windowed_layers(), (std::vector<bool>{false, true, true, false}));
  config.window_layers = "4";
  EXPECT_THROW(config.windowed_layers(), ConfigError);
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
