#include "cartan/model/parameters.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace cartan::model {
namespace {

ModelConfig small(bool tied) {
  ModelConfig c;
  c.hidden = 64;
  c.layers = 3;
  c.heads = 4;
  c.ffn = 96;
  c.vocab = 300;
  c.tied = tied;
  c.qkv_bias = true;
  c.qk_norm = true;
  c.derive(c.vocab);
  return c;
}

TEST(Units, NameEveryParameterOnce) {
  for (const bool tied : {false, true}) {
    std::set<std::string> names;
    std::size_t count = 0;
    for (const UnitSpec& unit : describe_units(small(tied))) {
      for (const ParameterSpec& parameter : unit.parameters) {
        names.insert(parameter.name);
        ++count;
      }
    }
    EXPECT_EQ(names.size(), count);
    EXPECT_EQ(names.contains("lm_head.weight"), !tied);
    EXPECT_TRUE(names.contains("model.layers.2.self_attn.k_norm.weight"));
  }
  EXPECT_THROW(describe_units(small(true))[0].parameter("nothing"), InternalError);
}

TEST(InitialValues, AreTheSameInAnyShard) {
  const ModelConfig config = small(false);
  for (const UnitSpec& unit : describe_units(config)) {
    for (const ParameterSpec& parameter : unit.parameters) {
      std::vector<float> whole(static_cast<std::size_t>(parameter.elements()));
      initial_values(config, parameter, 5, 0, whole);
      const Index first = parameter.elements() / 3;
      std::vector<float> part(static_cast<std::size_t>(parameter.elements() - first));
      initial_values(config, parameter, 5, first, part);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + first)) << parameter.name;
    }
  }
}

TEST(InitialValues, HaveTheDeviationOfTheirKind) {
  const ModelConfig config = small(false);
  const auto deviation = [&](std::size_t unit, const std::string& name) {
    const ParameterSpec parameter = describe_units(config)[unit].parameter(name);
    std::vector<float> values(static_cast<std::size_t>(parameter.elements()));
    initial_values(config, parameter, 1, 0, values);
    double square = 0;
    for (const float v : values) square += static_cast<double>(v) * v;
    return std::sqrt(square / static_cast<double>(values.size()));
  };
  EXPECT_NEAR(deviation(0, "model.embed_tokens.weight"), 0.02, 0.001);
  EXPECT_NEAR(deviation(1, "model.layers.0.self_attn.q_proj.weight"), 0.02, 0.001);
  EXPECT_NEAR(deviation(1, "model.layers.0.mlp.down_proj.weight"), 0.02 / std::sqrt(6.0), 0.0005);
  EXPECT_EQ(deviation(1, "model.layers.0.input_layernorm.weight"), 1.0);
  EXPECT_EQ(deviation(1, "model.layers.0.self_attn.q_proj.bias"), 0.0);
}

}  // namespace
}  // namespace cartan::model
