// The list of parameters, by unit.
#include "cartan/model/parameters.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "cartan/core/canonical_tree.hpp"
#include "cartan/core/narrow.hpp"
#include "cartan/core/random.hpp"

namespace cartan::model {
namespace {

/// What is split together along one dimension of a parameter: `granules` pieces of `width` rows or columns.
struct Split {
  int dim = 0;
  Index granules = 0, width = 1;
};

/// The granules of a place: neighbours where they suffice for all places, else one that several places share.
LeafRange granules_of(Index granules, TensorSlice tensor) {
  if (granules >= tensor.count) return leaf_range(granules, tensor.index, tensor.count);
  const Index one = tensor.index * granules / tensor.count;
  return {one, one + 1};
}

struct UnitBuilder {
  TensorSlice tensor;
  UnitSpec unit;

  void add(std::string name, std::vector<Index> shape, Init init, std::optional<Split> split = {}) {
    ParameterSpec spec;
    spec.name = std::move(name);
    spec.part = shape;
    spec.shape = std::move(shape);
    spec.offset = unit.elements;
    spec.init = init;
    spec.decayed = spec.shape.size() >= 2;
    if (split) {
      const LeafRange own = granules_of(split->granules, tensor);
      spec.tensor_dim = split->dim;
      spec.part[static_cast<std::size_t>(split->dim)] = (own.end - own.begin) * split->width;
      spec.first = own.begin * split->width;
      spec.sharers = static_cast<int>(std::max<Index>(1, tensor.count / split->granules));
    } else {
      spec.sharers = tensor.count;
    }
    spec.stands_alone = tensor.index % spec.sharers == 0;
    unit.elements += spec.elements();
    unit.parameters.push_back(std::move(spec));
  }
};

UnitSpec describe_block(const ModelConfig& c, Index layer, TensorSlice tensor) {
  UnitBuilder b{tensor, {}};
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  b.unit.name = "layer " + std::to_string(layer);
  b.unit.layer = layer;
  const Index q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  const Split heads{0, c.heads, c.head_dim}, kv_heads{0, c.kv_heads, c.head_dim}, ffn{0, c.ffn};
  b.add(prefix + "input_layernorm.weight", {c.hidden}, Init::ones);
  b.add(prefix + "post_attention_layernorm.weight", {c.hidden}, Init::ones);
  if (c.qk_norm) {
    b.add(prefix + "self_attn.q_norm.weight", {c.head_dim}, Init::ones);
    b.add(prefix + "self_attn.k_norm.weight", {c.head_dim}, Init::ones);
  }
  b.add(prefix + "self_attn.q_proj.weight", {q, c.hidden}, Init::normal, heads);
  b.add(prefix + "self_attn.k_proj.weight", {kv, c.hidden}, Init::normal, kv_heads);
  b.add(prefix + "self_attn.v_proj.weight", {kv, c.hidden}, Init::normal, kv_heads);
  if (c.qkv_bias) {
    b.add(prefix + "self_attn.q_proj.bias", {q}, Init::zeros, heads);
    b.add(prefix + "self_attn.k_proj.bias", {kv}, Init::zeros, kv_heads);
    b.add(prefix + "self_attn.v_proj.bias", {kv}, Init::zeros, kv_heads);
  }
  b.add(prefix + "self_attn.o_proj.weight", {c.hidden, q}, Init::normal, Split{1, c.heads, c.head_dim});
  b.add(prefix + "mlp.gate_proj.weight", {c.ffn, c.hidden}, Init::normal, ffn);
  b.add(prefix + "mlp.up_proj.weight", {c.ffn, c.hidden}, Init::normal, ffn);
  b.add(prefix + "mlp.down_proj.weight", {c.hidden, c.ffn}, Init::normal, Split{1, c.ffn});
  return b.unit;
}

}  // namespace

Index ParameterSpec::elements() const {
  return std::accumulate(part.begin(), part.end(), Index{1}, std::multiplies<>());
}

const ParameterSpec& UnitSpec::parameter(const std::string& wanted) const {
  for (const ParameterSpec& spec : parameters)
    if (spec.name == wanted) return spec;
  throw InternalError("unit {} has no parameter {}", name, wanted);
}

std::vector<UnitSpec> describe_units(const ModelConfig& c, TensorSlice tensor) {
  std::vector<UnitSpec> units;
  UnitBuilder embedding{tensor, {}};
  embedding.unit.name = "embedding";
  embedding.add("model.embed_tokens.weight", {c.vocab, c.hidden}, Init::normal, Split{0, c.vocab});
  units.push_back(embedding.unit);
  for (Index layer = 0; layer < c.layers; ++layer) units.push_back(describe_block(c, layer, tensor));
  UnitBuilder head{tensor, {}};
  head.unit.name = "head";
  head.add("model.norm.weight", {c.hidden}, Init::ones);
  if (!c.tied) head.add("lm_head.weight", {c.vocab, c.hidden}, Init::normal, Split{0, c.vocab});
  units.push_back(head.unit);
  return units;
}

ModelConfig part_of(const ModelConfig& config, TensorSlice tensor) {
  const auto size = [&](Index granules) {
    const LeafRange own = granules_of(granules, tensor);
    return own.end - own.begin;
  };
  ModelConfig part = config;
  part.heads = size(config.heads);
  part.kv_heads = size(config.kv_heads);
  part.ffn = size(config.ffn);
  part.vocab = size(config.vocab);
  return part;
}

Index first_vocabulary_row(const ModelConfig& config, TensorSlice tensor) {
  return granules_of(config.vocab, tensor).begin;
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
