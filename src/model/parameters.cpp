// The list of parameters, by unit.
#include "cartan/model/parameters.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "cartan/core/canonical_tree.hpp"
#include "cartan/core/narrow.hpp"
#include "cartan/core/random.hpp"
#include "cartan/model/adapters.hpp"

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

/// A parameter as it is on no place in particular.
struct Declared {
  std::string name;
  std::vector<Index> shape;
  Init init = Init::normal;
  std::optional<Split> split{};
};

/// Of a place's part.
Index part_elements(const Declared& declared, TensorSlice tensor) {
  Index elements = 1;
  for (const Index size : declared.shape) elements *= size;
  if (!declared.split) return elements;
  const LeafRange own = granules_of(declared.split->granules, tensor);
  return elements / declared.shape[static_cast<std::size_t>(declared.split->dim)] * (own.end - own.begin) *
         declared.split->width;
}

ParameterSpec place_part(const Declared& declared, TensorSlice tensor) {
  ParameterSpec spec;
  spec.name = declared.name;
  spec.part = declared.shape;
  spec.shape = declared.shape;
  spec.init = declared.init;
  spec.decayed = spec.shape.size() >= 2;
  if (declared.split) {
    const Split& split = *declared.split;
    const LeafRange own = granules_of(split.granules, tensor);
    spec.tensor_dim = split.dim;
    spec.part[static_cast<std::size_t>(split.dim)] = (own.end - own.begin) * split.width;
    spec.first = own.begin * split.width;
    spec.sharers = static_cast<int>(std::max<Index>(1, tensor.count / split.granules));
  } else {
    spec.sharers = tensor.count;
  }
  spec.stands_alone = tensor.index % spec.sharers == 0;
  return spec;
}

UnitSpec make_unit(std::string name, Index layer, const std::vector<Declared>& all, const ModelConfig& config,
                   TensorSlice tensor) {
  UnitSpec unit;
  unit.name = std::move(name);
  unit.layer = layer;
  for (const bool trained : {true, false}) {
    std::vector<const Declared*> these;
    for (const Declared& declared : all)
      if (is_trained(config, declared.name) == trained) these.push_back(&declared);
    for (const Declared* declared : these) {
      ParameterSpec spec = place_part(*declared, tensor);
      spec.offset = unit.elements;
      spec.trained = trained;
      unit.elements += spec.elements();
      unit.parameters.push_back(std::move(spec));
    }
    if (!trained) break;
    for (int place = 0; place < tensor.count; ++place) {
      Index elements = 0;
      for (const Declared* declared : these) elements += part_elements(*declared, {place, tensor.count});
      unit.trained = std::max(unit.trained, elements);
    }
    if (these.size() < all.size()) unit.elements = unit.trained;
  }
  return unit;
}

/// Replicated parameters first, then those whose parts are equally large on all places.
std::vector<Declared> declare_block(const ModelConfig& c, Index layer) {
  const Index q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  const Split heads{0, c.heads, c.head_dim}, kv_heads{0, c.kv_heads, c.head_dim}, ffn{0, c.ffn};
  struct Projection {
    std::string name;
    Index rows, cols;
    Split split;
  };
  const auto projection = [&](std::string_view name, Index rows, Index cols, Split split) {
    return Projection{linear_name(layer, name), rows, cols, split};
  };
  const std::vector<Projection> attention{
      projection("self_attn.q_proj", q, c.hidden, heads),
      projection("self_attn.k_proj", kv, c.hidden, kv_heads),
      projection("self_attn.v_proj", kv, c.hidden, kv_heads),
      projection("self_attn.o_proj", c.hidden, q, Split{1, c.heads, c.head_dim})};
  const std::vector<Projection> mlp{projection("mlp.gate_proj", c.ffn, c.hidden, ffn),
                                    projection("mlp.up_proj", c.ffn, c.hidden, ffn),
                                    projection("mlp.down_proj", c.hidden, c.ffn, Split{1, c.ffn})};
  const std::string prefix = linear_name(layer, "");
  std::vector<Declared> all;
  all.push_back({prefix + "input_layernorm.weight", {c.hidden}, Init::ones});
  all.push_back({prefix + "post_attention_layernorm.weight", {c.hidden}, Init::ones});
  if (c.qk_norm) {
    all.push_back({prefix + "self_attn.q_norm.weight", {c.head_dim}, Init::ones});
    all.push_back({prefix + "self_attn.k_norm.weight", {c.head_dim}, Init::ones});
  }
  // A layer that is split by rows has B split, one that is split by columns has A.
  const auto declare_adapter = [&](const Projection& p, bool replicated) {
    if (!has_adapter(c, layer, p.name)) return;
    const Split& split = p.split;
    const bool splits_b = split.dim == 0;
    if (splits_b == replicated)
      all.push_back({adapter_a(p.name),
                     {c.lora.rank, p.cols},
                     Init::uniform,
                     splits_b ? std::nullopt : std::optional(split)});
    else
      all.push_back({adapter_b(p.name),
                     {p.rows, c.lora.rank},
                     Init::zeros,
                     splits_b ? std::optional(split) : std::nullopt});
  };
  for (const auto* group : {&attention, &mlp})
    for (const Projection& p : *group) declare_adapter(p, true);
  const auto declare_weight = [&](const Projection& p) {
    all.push_back({p.name + ".weight", {p.rows, p.cols}, Init::normal, p.split});
  };
  for (const Projection& p : attention) {
    if (p.split.dim == 1 && c.qkv_bias)
      for (std::size_t i = 0; i < 3; ++i)
        all.push_back({attention[i].name + ".bias", {attention[i].rows}, Init::zeros, attention[i].split});
    declare_weight(p);
  }
  for (const Projection& p : attention) declare_adapter(p, false);
  for (const Projection& p : mlp) declare_weight(p);
  for (const Projection& p : mlp) declare_adapter(p, false);
  return all;
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
  units.reserve(static_cast<std::size_t>(c.layers + 2));
  const Split vocabulary{0, c.vocab};
  units.push_back(make_unit("embedding", -1,
                            {{"model.embed_tokens.weight", {c.vocab, c.hidden}, Init::normal, vocabulary}}, c,
                            tensor));
  for (Index layer = 0; layer < c.layers; ++layer)
    units.push_back(make_unit("layer " + std::to_string(layer), layer, declare_block(c, layer), c, tensor));
  std::vector<Declared> head{{"model.norm.weight", {c.hidden}, Init::ones}};
  if (!c.tied) head.push_back({"lm_head.weight", {c.vocab, c.hidden}, Init::normal, vocabulary});
  units.push_back(make_unit("head", -1, head, c, tensor));
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
  if (parameter.init == Init::uniform) {
    const RandomStream random(seed, parameter.name);
    const double bound = 1 / std::sqrt(static_cast<double>(parameter.shape.back()));
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = static_cast<float>(bound * (2 * random.uniform(narrow<std::uint64_t>(first) + i) - 1));
    return;
  }
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
