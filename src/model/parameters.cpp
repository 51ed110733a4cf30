// The list of parameters, by unit.
#include "cartan/model/parameters.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "cartan/core/narrow.hpp"
#include "cartan/core/random.hpp"

namespace cartan::model {
namespace {

struct UnitBuilder {
  UnitSpec unit;

  void add(std::string name, std::vector<Index> shape, Init init, std::optional<int> tensor_dim) {
    ParameterSpec spec{std::move(name), std::move(shape), unit.elements, false, init, tensor_dim};
    spec.decayed = spec.shape.size() >= 2;
    unit.elements += spec.elements();
    unit.parameters.push_back(std::move(spec));
  }
};

UnitSpec describe_block(const ModelConfig& c, Index layer) {
  UnitBuilder b;
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  b.unit.name = "layer " + std::to_string(layer);
  const Index q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  b.add(prefix + "input_layernorm.weight", {c.hidden}, Init::ones, {});
  b.add(prefix + "self_attn.q_proj.weight", {q, c.hidden}, Init::normal, 0);
  b.add(prefix + "self_attn.k_proj.weight", {kv, c.hidden}, Init::normal, 0);
  b.add(prefix + "self_attn.v_proj.weight", {kv, c.hidden}, Init::normal, 0);
  if (c.qkv_bias) {
    b.add(prefix + "self_attn.q_proj.bias", {q}, Init::zeros, 0);
    b.add(prefix + "self_attn.k_proj.bias", {kv}, Init::zeros, 0);
    b.add(prefix + "self_attn.v_proj.bias", {kv}, Init::zeros, 0);
  }
  if (c.qk_norm) {
    b.add(prefix + "self_attn.q_norm.weight", {c.head_dim}, Init::ones, {});
    b.add(prefix + "self_attn.k_norm.weight", {c.head_dim}, Init::ones, {});
  }
  b.add(prefix + "self_attn.o_proj.weight", {c.hidden, q}, Init::normal, 1);
  b.add(prefix + "post_attention_layernorm.weight", {c.hidden}, Init::ones, {});
  b.add(prefix + "mlp.gate_proj.weight", {c.ffn, c.hidden}, Init::normal, 0);
  b.add(prefix + "mlp.up_proj.weight", {c.ffn, c.hidden}, Init::normal, 0);
  b.add(prefix + "mlp.down_proj.weight", {c.hidden, c.ffn}, Init::normal, 1);
  return b.unit;
}

}  // namespace

Index ParameterSpec::elements() const {
  return std::accumulate(shape.begin(), shape.end(), Index{1}, std::multiplies<>());
}

const ParameterSpec& UnitSpec::parameter(const std::string& wanted) const {
  for (const ParameterSpec& spec : parameters)
    if (spec.name == wanted) return spec;
  throw InternalError("unit {} has no parameter {}", name, wanted);
}

std::vector<UnitSpec> describe_units(const ModelConfig& c) {
  std::vector<UnitSpec> units;
  UnitBuilder embedding;
  embedding.unit.name = "embedding";
  embedding.add("model.embed_tokens.weight", {c.vocab, c.hidden}, Init::normal, 0);
  units.push_back(embedding.unit);
  for (Index layer = 0; layer < c.layers; ++layer) units.push_back(describe_block(c, layer));
  UnitBuilder head;
  head.unit.name = "head";
  head.add("model.norm.weight", {c.hidden}, Init::ones, {});
  if (!c.tied) head.add("lm_head.weight", {c.vocab, c.hidden}, Init::normal, 0);
  units.push_back(head.unit);
  return units;
}

void initial_values(const ModelConfig& config, const ParameterSpec& parameter, std::uint64_t seed,
                    Index first, std::span<float> out) {
  if (parameter.init != Init::normal) {
    std::fill(out.begin(), out.end(), parameter.init == Init::ones ? 1.0f : 0.0f);
    return;
  }
  const bool writes_residual =
      parameter.name.ends_with("o_proj.weight") || parameter.name.ends_with("down_proj.weight");
  const double deviation = writes_residual
                               ? config.init_std / std::sqrt(2.0 * static_cast<double>(config.layers))
                               : config.init_std;
  RandomStream(seed, parameter.name).fill_normal(narrow<std::uint64_t>(first), 0.0, deviation, out);
}

}  // namespace cartan::model
