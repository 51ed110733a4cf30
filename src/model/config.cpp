// Presets, derived values, checks and the JSON form of the model description.
#include "cartan/model/config.hpp"

#include <array>
#include <utility>

#include "cartan/core/json.hpp"
#include "cartan/core/text.hpp"
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
  const RopeScaling& r = c.rope_scaling;
  if (r.kind != "none" && r.kind != "llama3")
    problems.add("model.rope-scaling = {}: use none or llama3", r.kind);
  if (r.kind == "llama3" && !(r.factor >= 1 && r.low_freq_factor > 0 &&
                              r.high_freq_factor > r.low_freq_factor && r.original_length > 0))
    problems.add(
        "model.rope-scaling = llama3 needs factor >= 1, 0 < low-freq < high-freq and a positive original "
        "length; got {}, "
        "{}, {}, {}",
        r.factor, r.low_freq_factor, r.high_freq_factor, r.original_length);
}

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
  json["rope_scaling"] = Json{{"kind", c.rope_scaling.kind}};
  if (c.rope_scaling.kind != "none") {
    json["rope_scaling"]["factor"] = c.rope_scaling.factor;
    json["rope_scaling"]["low_freq_factor"] = c.rope_scaling.low_freq_factor;
    json["rope_scaling"]["high_freq_factor"] = c.rope_scaling.high_freq_factor;
    json["rope_scaling"]["original_length"] = c.rope_scaling.original_length;
  }
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
    const Json& rope = json.at("rope_scaling");
    rope.at("kind").get_to(c.rope_scaling.kind);
    if (c.rope_scaling.kind != "none") {
      rope.at("factor").get_to(c.rope_scaling.factor);
      rope.at("low_freq_factor").get_to(c.rope_scaling.low_freq_factor);
      rope.at("high_freq_factor").get_to(c.rope_scaling.high_freq_factor);
      rope.at("original_length").get_to(c.rope_scaling.original_length);
    }
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
  const auto d = static_cast<double>(c.hidden), width = static_cast<double>(c.heads * c.head_dim),
             kv_width = static_cast<double>(c.kv_heads * c.head_dim);
  const double block = d * width * 2 + d * kv_width * 2 + 3 * d * static_cast<double>(c.ffn);
  const double weights = static_cast<double>(c.layers) * block + static_cast<double>(c.vocab) * d;
  const double attention = 6.0 * static_cast<double>(length) * width * static_cast<double>(c.layers);
  return {6 * weights + attention, 6 * weights + 2 * attention};
}

Index parameter_count(const ModelConfig& config) {
  Index count = 0;
  for (const UnitSpec& unit : describe_units(config)) count += unit.elements;
  return count;
}

}  // namespace cartan::model
