// Presets, derived values, checks and the JSON form of the model description.
#include "cartan/model/config.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "cartan/core/json.hpp"
#include "cartan/core/narrow.hpp"
#include "cartan/core/text.hpp"
#include "cartan/model/adapters.hpp"
#include "cartan/model/parameters.hpp"

namespace cartan::model {
namespace {

struct Preset {
  const char* name;
  Index hidden, layers, heads, kv_heads, head_dim, ffn, vocab;
  bool tied, qkv_bias, qk_norm;
  double rope_theta, norm_eps;
  double llama3_factor;  ///< 0: no scaling
};

// Shapes as published by the models' authors.
constexpr std::array kPresets{
    Preset{"tiny", 128, 4, 4, 2, 0, 352, 0, true, false, false, 1e4, 1e-5, 0},
    Preset{"10m", 256, 8, 8, 4, 0, 704, 512, false, false, false, 1e4, 1e-6, 0},
    Preset{"smollm2-135m", 576, 30, 9, 3, 0, 1536, 49152, true, false, false, 1e5, 1e-5, 0},
    Preset{"llama2-7b", 4096, 32, 32, 32, 0, 11008, 32000, false, false, false, 1e4, 1e-5, 0},
    Preset{"llama3-8b", 4096, 32, 32, 8, 0, 14336, 128256, false, false, false, 5e5, 1e-5, 0},
    Preset{"llama3-70b", 8192, 80, 64, 8, 0, 28672, 128256, false, false, false, 5e5, 1e-5, 0},
    Preset{"llama3.2-1b", 2048, 16, 32, 8, 64, 8192, 128256, true, false, false, 5e5, 1e-5, 32},
    Preset{"qwen2.5-0.5b", 896, 24, 14, 2, 0, 4864, 151936, true, true, false, 1e6, 1e-6, 0},
    Preset{"qwen3-0.6b", 1024, 28, 16, 8, 128, 3072, 151936, true, false, true, 1e6, 1e-6, 0},
};

constexpr std::array<std::string_view, 5> kFamilies{"llama", "mistral", "qwen2", "qwen3", "phi3"};
constexpr std::array<std::string_view, 6> kRopeKinds{"none",   "linear", "dynamic",
                                                     "llama3", "yarn",   "longrope"};

void check_rope(const ModelConfig& c, Problems& problems) {
  const RopeScaling& r = c.rope_scaling;
  if (std::find(kRopeKinds.begin(), kRopeKinds.end(), r.kind) == kRopeKinds.end()) {
    problems.add("model.rope-scaling = {}: use one of {}", r.kind, fmt::join(kRopeKinds, ", "));
    return;
  }
  if (r.kind == "none") return;
  if (r.kind != "longrope" && !(r.factor >= 1))
    problems.add("model.rope-factor = {}: must be at least 1", r.factor);
  if (r.kind != "linear" && r.original_length < 1)
    problems.add("model.rope-original-length = {}: must be at least 1", r.original_length);
  if (r.kind == "llama3" && !(r.low_freq_factor > 0 && r.high_freq_factor > r.low_freq_factor))
    problems.add("model.rope-low-freq = {} and model.rope-high-freq = {}: must be positive and ascending",
                 r.low_freq_factor, r.high_freq_factor);
  if (!(r.attention_factor >= 0))
    problems.add("model.rope-attention-factor = {}: must not be negative", r.attention_factor);
  if (r.kind == "yarn" && !(r.beta_slow > 0 && r.beta_fast > r.beta_slow))
    problems.add("model.rope-beta-slow = {} and model.rope-beta-fast = {}: must be positive and ascending",
                 r.beta_slow, r.beta_fast);
  if (r.kind != "longrope") return;
  const auto pairs = static_cast<std::size_t>(c.turning_channels() / 2);
  for (const auto& [key, factors] : {std::pair{"model.rope-short-factors", &r.short_factors},
                                     std::pair{"model.rope-long-factors", &r.long_factors}})
    if (factors->size() != pairs ||
        !std::all_of(factors->begin(), factors->end(), [](double f) { return f > 0; }))
      problems.add("{} has {} numbers: longrope needs a positive one for each of {} pairs of channels", key,
                   factors->size(), pairs);
  if (r.attention_factor == 0 && c.max_length < 1)
    problems.add("model.max-length = {}: longrope needs it, or model.rope-attention-factor", c.max_length);
}

Json rope_to_json(const RopeScaling& r) {
  Json json{{"kind", r.kind}};
  if (r.kind == "none") return json;
  if (r.kind != "longrope") json["factor"] = r.factor;
  if (r.kind == "llama3") {
    json["low_freq_factor"] = r.low_freq_factor;
    json["high_freq_factor"] = r.high_freq_factor;
  }
  if (r.kind != "linear") json["original_length"] = r.original_length;
  if (r.kind == "yarn") {
    json["beta_fast"] = r.beta_fast;
    json["beta_slow"] = r.beta_slow;
  }
  if (r.kind == "yarn" || r.kind == "longrope") json["attention_factor"] = r.attention_factor;
  if (r.kind == "longrope") {
    json["short_factors"] = r.short_factors;
    json["long_factors"] = r.long_factors;
  }
  return json;
}

RopeScaling rope_from_json(const Json& json) {
  RopeScaling r;
  json.at("kind").get_to(r.kind);
  if (r.kind == "none") return r;
  if (r.kind != "longrope") json.at("factor").get_to(r.factor);
  if (r.kind == "llama3") {
    json.at("low_freq_factor").get_to(r.low_freq_factor);
    json.at("high_freq_factor").get_to(r.high_freq_factor);
  }
  if (r.kind != "linear") json.at("original_length").get_to(r.original_length);
  if (r.kind == "yarn") {
    json.at("beta_fast").get_to(r.beta_fast);
    json.at("beta_slow").get_to(r.beta_slow);
  }
  if (r.kind == "yarn" || r.kind == "longrope") json.at("attention_factor").get_to(r.attention_factor);
  if (r.kind == "longrope") {
    json.at("short_factors").get_to(r.short_factors);
    json.at("long_factors").get_to(r.long_factors);
  }
  return r;
}

std::string divisors_text(Index value) {
  std::string text;
  for (Index d = 1; d <= value; ++d)
    if (value % d == 0) text += (text.empty() ? "" : ", ") + std::to_string(d);
  return text;
}

}  // namespace

void ModelConfig::derive(Index tokenizer_vocab) {
  if (kv_heads == 0) kv_heads = heads;
  if (head_dim == 0 && heads > 0) head_dim = hidden / heads;
  if (vocab == 0) vocab = tokenizer_vocab;
  // Lists may be written with commas.
  for (std::vector<std::string>* const list : {&lora.targets, &train_only}) {
    std::vector<std::string> words;
    for (const std::string& text : *list)
      for (const std::string& word : split(text, ','))
        if (!trim(word).empty()) words.emplace_back(trim(word));
    *list = words;
  }
}

std::vector<bool> ModelConfig::windowed_layers() const {
  if (window == 0 || window_layers == "all")
    return std::vector<bool>(narrow<std::size_t>(layers), window > 0);
  const auto named = parse_ranges(window_layers, layers);
  if (!named)
    throw ConfigError("model.window-layers = {}: use all, or numbers from 0 to {} as in 0-{}", window_layers,
                      layers - 1, (layers - 1) / 2);
  return *named;
}

void check(const ModelConfig& c, Problems& problems) {
  const std::array<std::pair<const char*, Index>, 7> positive{{{"model.hidden", c.hidden},
                                                               {"model.layers", c.layers},
                                                               {"model.heads", c.heads},
                                                               {"model.kv-heads", c.kv_heads},
                                                               {"model.head-dim", c.head_dim},
                                                               {"model.ffn", c.ffn},
                                                               {"model.vocab", c.vocab}}};
  bool usable = true;
  for (const auto& [key, value] : positive) {
    if (value >= 1) continue;
    problems.add("{} = {}: must be at least 1", key, value);
    usable = false;
  }
  if (c.layers > kMostLayers) {
    problems.add("model.layers = {}: must be at most {}", c.layers, kMostLayers);
    usable = false;
  }
  if (!usable) return;
  if (c.heads % c.kv_heads != 0)
    problems.add("model.heads = {} is not divisible by model.kv-heads = {}: use {}", c.heads, c.kv_heads,
                 divisors_text(c.heads));
  if (c.head_dim * c.heads != c.hidden && c.hidden % c.heads != 0 && c.head_dim == c.hidden / c.heads)
    problems.add("model.hidden = {} is not divisible by model.heads = {}: change one, or set model.head-dim",
                 c.hidden, c.heads);
  if (c.head_dim % 2 != 0)
    problems.add("model.head-dim = {} is odd: rotary embeddings turn pairs of channels, use an even number",
                 c.head_dim);
  if (!(c.rope_theta > 0)) problems.add("model.rope-theta = {}: must be positive", c.rope_theta);
  if (!(c.norm_eps > 0)) problems.add("model.norm-eps = {}: must be positive", c.norm_eps);
  if (!(c.init_std > 0)) problems.add("model.init-std = {}: must be positive", c.init_std);
  if (c.rotary_dim % 2 != 0 || c.rotary_dim > c.head_dim || c.rotary_dim < 0)
    problems.add("model.rotary-dim = {}: must be an even number from 0 to model.head-dim = {}", c.rotary_dim,
                 c.head_dim);
  if (c.window < 0) problems.add("model.window = {}: must not be negative", c.window);
  try {
    c.windowed_layers();
  } catch (const ConfigError& error) {
    problems.add("{}", error.what());
  }
  if (!c.family.empty() && std::find(kFamilies.begin(), kFamilies.end(), c.family) == kFamilies.end())
    problems.add("model.family = {}: use one of {}", c.family, fmt::join(kFamilies, ", "));
  check_rope(c, problems);
  check_trained(c, problems);
}

std::vector<std::string> family_names() { return {kFamilies.begin(), kFamilies.end()}; }
std::vector<std::string> rope_scaling_names() { return {kRopeKinds.begin(), kRopeKinds.end()}; }

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  names.reserve(std::size(kPresets));
  for (const Preset& p : kPresets) names.emplace_back(p.name);
  return names;
}

ModelConfig preset(const std::string& name) {
  for (const Preset& p : kPresets) {
    if (name != p.name) continue;
    ModelConfig c;
    c.preset = name;
    c.hidden = p.hidden;
    c.layers = p.layers;
    c.heads = p.heads;
    c.kv_heads = p.kv_heads;
    c.head_dim = p.head_dim;
    c.ffn = p.ffn;
    c.vocab = p.vocab;
    c.tied = p.tied;
    c.qkv_bias = p.qkv_bias;
    c.qk_norm = p.qk_norm;
    c.rope_theta = p.rope_theta;
    c.norm_eps = p.norm_eps;
    if (p.llama3_factor > 0) {
      c.rope_scaling.kind = "llama3";
      c.rope_scaling.factor = p.llama3_factor;
    }
    return c;
  }
  const std::vector<std::string> names = preset_names();
  const auto near = nearest(name, names);
  throw ConfigError("model.preset = {} is unknown{}; known: {}", name,
                    near ? " (did you mean " + *near + "?)" : "", fmt::join(names, ", "));
}

Json to_json(const ModelConfig& c) {
  Json json{{"hidden", c.hidden},         {"layers", c.layers},
            {"heads", c.heads},           {"kv_heads", c.kv_heads},
            {"head_dim", c.head_dim},     {"ffn", c.ffn},
            {"vocab", c.vocab},           {"tied", c.tied},
            {"qkv_bias", c.qkv_bias},     {"qk_norm", c.qk_norm},
            {"rope_theta", c.rope_theta}, {"norm_eps", c.norm_eps},
            {"init_std", c.init_std}};
  json["rope_scaling"] = rope_to_json(c.rope_scaling);
  // What other models have not is left away.
  if (c.turning_channels() != c.head_dim) json["rotary_dim"] = c.rotary_dim;
  if (c.window > 0) {
    json["window"] = c.window;
    json["window_layers"] = c.window_layers;
  }
  if (c.max_length > 0) json["max_length"] = c.max_length;
  if (!c.family.empty()) json["family"] = c.family;
  if (c.lora.rank > 0)
    json["lora"] = {{"rank", c.lora.rank},
                    {"alpha", c.lora.alpha},
                    {"dropout", c.lora.dropout},
                    {"targets", c.lora.targets},
                    {"layers", c.lora.layers}};
  if (!c.train_only.empty()) json["train_only"] = c.train_only;
  return json;
}

ModelConfig model_config_from_json(const Json& json, const std::string& where) {
  ModelConfig c;
  try {
    json.at("hidden").get_to(c.hidden);
    json.at("layers").get_to(c.layers);
    json.at("heads").get_to(c.heads);
    json.at("kv_heads").get_to(c.kv_heads);
    json.at("head_dim").get_to(c.head_dim);
    json.at("ffn").get_to(c.ffn);
    json.at("vocab").get_to(c.vocab);
    json.at("tied").get_to(c.tied);
    json.at("qkv_bias").get_to(c.qkv_bias);
    json.at("qk_norm").get_to(c.qk_norm);
    json.at("rope_theta").get_to(c.rope_theta);
    json.at("norm_eps").get_to(c.norm_eps);
    json.at("init_std").get_to(c.init_std);
    c.rope_scaling = rope_from_json(json.at("rope_scaling"));
    c.rotary_dim = json.value("rotary_dim", c.rotary_dim);
    c.window = json.value("window", c.window);
    c.window_layers = json.value("window_layers", c.window_layers);
    c.max_length = json.value("max_length", c.max_length);
    c.family = json.value("family", c.family);
    if (json.contains("lora")) {
      const Json& lora = json.at("lora");
      lora.at("rank").get_to(c.lora.rank);
      lora.at("alpha").get_to(c.lora.alpha);
      lora.at("dropout").get_to(c.lora.dropout);
      lora.at("targets").get_to(c.lora.targets);
      lora.at("layers").get_to(c.lora.layers);
    }
    c.train_only = json.value("train_only", c.train_only);
  } catch (const nlohmann::json::exception& error) {
    throw DataError("{}: the model description is incomplete or wrong: {}", where, error.what());
  }
  Problems problems;
  check(c, problems);
  if (!problems.empty())
    throw DataError("{}: the model description does not fit: {}", where, problems.lines().front());
  return c;
}

FlopsPerToken flops_per_token(const ModelConfig& c, Index length) {
  const std::vector<UnitSpec> units = describe_units(c);
  const auto width = static_cast<double>(c.heads * c.head_dim), tokens = static_cast<double>(length);
  bool goes_back = false;  // a unit in front is trained, so the gradient is needed here
  double products = 0, attention = 0;
  for (std::size_t u = 0; u < units.size(); ++u) {
    goes_back = goes_back || units[u].trained > 0;
    for (const ParameterSpec& parameter : units[u].parameters) {
      if (parameter.shape.size() != 2 || u == 0) continue;  // a look-up is no product
      products += (2.0 + (goes_back ? 2 : 0) + (parameter.trained ? 2 : 0)) *
                  static_cast<double>(parameter.elements());
    }
    if (u > 0 && u + 1 < units.size()) attention += (goes_back ? 6 : 2) * tokens * width;
  }
  if (c.tied)
    products += (2.0 + (goes_back ? 2 : 0) + (units.front().trained > 0 ? 2 : 0)) *
                static_cast<double>(c.vocab * c.hidden);
  return {products + attention, products + 2 * attention};
}

Index parameter_count(const ModelConfig& config) {
  Index count = 0;
  for (const UnitSpec& unit : describe_units(config))
    for (const ParameterSpec& parameter : unit.parameters) count += parameter.elements();
  return count;
}

Index trained_parameter_count(const ModelConfig& config) {
  Index count = 0;
  for (const UnitSpec& unit : describe_units(config))
    for (const ParameterSpec& parameter : unit.parameters)
      if (parameter.trained) count += parameter.elements();
  return count;
}

}  // namespace cartan::model
