#include "cartan/model/adapters.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "cartan/model/parameters.hpp"

namespace cartan::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelConfig odd(bool tied) {
  ModelConfig c;
  c.hidden = 42;
  c.layers = 3;
  c.heads = 6;
  c.kv_heads = 2;
  c.head_dim = 10;
  c.ffn = 37;
  c.vocab = 61;
  c.tied = tied;
  c.qkv_bias = !tied;
  c.qk_norm = tied;
  return c;
}

std::vector<std::string> trained_of(const ModelConfig& config) {
  std::vector<std::string> names;
  for (const UnitSpec& unit : describe_units(config))
    for (const ParameterSpec& parameter : unit.parameters)
      if (parameter.trained) names.push_back(parameter.name);
  return names;
}

std::string problem_of(const ModelConfig& config) {
  Problems problems;
  check_trained(config, problems);
  return problems.empty() ? "" : problems.lines().front();
}

TEST(Trained, PatternsNameParametersAsAWholeOrBehindADot) {
  ModelConfig c = odd(false);
  EXPECT_EQ(trained_parameter_count(c), parameter_count(c));
  c.train_only = {"lm_head.weight", "model.layers.2.*.v_proj.*", "norm.weight"};
  EXPECT_THAT(trained_of(c),
              ElementsAre("model.layers.2.self_attn.v_proj.weight", "model.layers.2.self_attn.v_proj.bias",
                          "model.norm.weight", "lm_head.weight"));
  EXPECT_EQ(problem_of(c), "");
  c.train_only = {"lm_haed.weight"};
  EXPECT_THAT(problem_of(c), HasSubstr("lm_haed.weight names no parameter (did you mean lm_head.weight?)"));
}

TEST(Trained, AdaptersStandBesideTheLayersThatAreNamed) {
  ModelConfig c = odd(true);
  c.lora.rank = 3;
  c.lora.targets = {"v_proj", "*.mlp.down_proj"};
  c.lora.layers = "0,2";
  EXPECT_THAT(
      trained_of(c),
      ElementsAre(
          "model.layers.0.self_attn.v_proj.lora_A.weight", "model.layers.0.mlp.down_proj.lora_B.weight",
          "model.layers.0.self_attn.v_proj.lora_B.weight", "model.layers.0.mlp.down_proj.lora_A.weight",
          "model.layers.2.self_attn.v_proj.lora_A.weight", "model.layers.2.mlp.down_proj.lora_B.weight",
          "model.layers.2.self_attn.v_proj.lora_B.weight", "model.layers.2.mlp.down_proj.lora_A.weight"));
  EXPECT_EQ(trained_parameter_count(c), 2 * 3 * ((42 + 20) + (37 + 42)));
  EXPECT_EQ(parameter_count(c) - trained_parameter_count(c), parameter_count(without_adapters(c)));
  c.lora.targets = {"all-linear"};
  EXPECT_EQ(trained_of(c).size(), 2u * 7u * 2u);
  c.train_only = {"*norm.weight"};
  EXPECT_EQ(trained_of(c).size(), 2u * 7u * 2u + 3u * 4u + 1u);
}

TEST(Trained, WhatIsWrongIsNamed) {
  const auto with = [](const auto& change) {
    ModelConfig c = odd(false);
    c.lora.rank = 2;
    change(c);
    return problem_of(c);
  };
  EXPECT_EQ(with([](ModelConfig&) {}), "");
  EXPECT_THAT(with([](ModelConfig& c) { c.lora.targets = {"q_porj"}; }), HasSubstr("did you mean q_proj?"));
  EXPECT_THAT(with([](ModelConfig& c) { c.lora.targets.clear(); }), HasSubstr("lora.targets is empty"));
  EXPECT_THAT(with([](ModelConfig& c) { c.lora.layers = "1-3"; }), HasSubstr("numbers from 0 to 2"));
  EXPECT_THAT(with([](ModelConfig& c) { c.lora.rank = -1; }), HasSubstr("lora.rank = -1"));
  EXPECT_THAT(with([](ModelConfig& c) { c.lora.alpha = 0; }), HasSubstr("lora.alpha = 0"));
  EXPECT_THAT(with([](ModelConfig& c) { c.lora.dropout = 1; }), HasSubstr("lora.dropout = 1"));
  EXPECT_THAT(with([](ModelConfig& c) { c.lora.from = "x"; }), HasSubstr("model.from"));
}

// What several places of tensor parallelism share must lie at the same elements on all of them.
TEST(Trained, LiesInFrontOfEachUnitAndAtTheSameElementsWhereItIsShared) {
  for (const bool tied : {false, true})
    for (const int places : {1, 2, 6}) {
      ModelConfig c = odd(tied);
      c.lora.rank = 2;
      c.lora.targets = {"all-linear"};
      c.train_only = {"*.k_proj.*", "*norm.weight"};
      std::map<std::string, Index> shared;
      std::vector<Index> trained;
      std::map<std::string, Index> rows;
      for (int place = 0; place < places; ++place) {
        const auto units = describe_units(c, {place, places});
        for (std::size_t u = 0; u < units.size(); ++u) {
          if (place == 0) trained.push_back(units[u].trained);
          EXPECT_EQ(units[u].trained, trained[u]) << units[u].name;
          Index end = 0;
          for (const ParameterSpec& p : units[u].parameters) {
            EXPECT_EQ(p.trained, p.offset < units[u].trained) << p.name;
            EXPECT_GE(p.offset, end) << p.name;
            end = p.offset + p.elements();
            if (p.trained && p.sharers > 1) {
              const int group = place / p.sharers;
              const auto [at, is_new] =
                  shared.emplace(p.name + " of group " + std::to_string(group), p.offset);
              EXPECT_EQ(at->second, p.offset) << p.name;
            }
            if (p.stands_alone) rows[p.name] += p.elements();
          }
          EXPECT_EQ(std::max(end, units[u].trained), std::max(units[u].elements, units[u].trained));
        }
      }
      for (const UnitSpec& unit : describe_units(c))
        for (const ParameterSpec& p : unit.parameters) EXPECT_EQ(rows[p.name], p.elements()) << p.name;
    }
}

TEST(Trained, WhatIsNotTrainedCostsLess) {
  ModelConfig c = odd(false);
  const FlopsPerToken all = flops_per_token(c, 8);
  const double head = 61 * 42, attention = 8 * 60;
  c.train_only = {"lm_head.weight"};
  // Forward alone, but for the head, whose input has nobody to tell its gradient, which it makes all the
  // same.
  EXPECT_DOUBLE_EQ(flops_per_token(c, 8).causal, (all.causal - 6 * head) / 3 + 6 * head);
  c.train_only = {"embed_tokens.weight"};
  const double weights = (all.causal - 6 * head - 6 * 3 * attention) / 6;
  EXPECT_DOUBLE_EQ(flops_per_token(c, 8).causal, 4 * (weights + head) + 6 * 3 * attention);
}

TEST(Trained, AdaptersBeginAsPeftBeginsThem) {
  ModelConfig c = odd(false);
  c.lora.rank = 8;
  const std::vector<UnitSpec> units = describe_units(c);
  const auto values_of = [&](const std::string& name) {
    const ParameterSpec& p = units[1].parameter(name);
    std::vector<float> values(static_cast<std::size_t>(p.elements()));
    initial_values(c, p, 3, 0, values);
    return values;
  };
  const std::string linear = linear_name(0, "self_attn.q_proj");
  const std::vector<float> a = values_of(adapter_a(linear)), b = values_of(adapter_b(linear));
  const float bound = 1 / std::sqrt(42.0f);
  double squares = 0;
  for (const float value : a) {
    EXPECT_LE(std::abs(value), bound);
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  // Uniform numbers have the variance bound^2 / 3.
  EXPECT_NEAR(squares / static_cast<double>(a.size()) / static_cast<double>(bound * bound), 1.0 / 3, 0.05);
  EXPECT_TRUE(std::all_of(b.begin(), b.end(), [](float value) { return value == 0; }));
}

}  // namespace
}  // namespace cartan::model
