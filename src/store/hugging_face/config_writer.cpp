// From the description of a model to the config.json that transformers reads.
#include <array>
#include <functional>
#include <optional>
#include <string_view>

#include "cartan/core/json.hpp"
#include "cartan/store/model_config_file.hpp"

namespace cartan::store {
namespace {

using model::ModelConfig;

/// What a family's config.json can say beside sizes.
struct Family {
  std::string_view name, architecture;
  bool qkv_bias, qk_norm;
  bool windows, windows_of_some;  ///< sliding_window; layer_types
  bool partial_rotary, own_head_dim;
};
constexpr std::array kFamilies{
    Family{"llama", "LlamaForCausalLM", false, false, false, false, false, true},
    Family{"mistral", "MistralForCausalLM", false, false, true, false, false, true},
    Family{"qwen2", "Qwen2ForCausalLM", true, false, true, true, false, false},
    Family{"qwen3", "Qwen3ForCausalLM", false, true, true, true, false, true},
    Family{"phi3", "Phi3ForCausalLM", false, false, true, false, true, false},
};

bool has_window(const ModelConfig& c, bool in_all) {
  std::size_t count = 0;
  for (const bool windowed : c.windowed_layers()) count += windowed ? 1 : 0;
  return in_all ? count == static_cast<std::size_t>(c.layers) : count > 0;
}

/// What the family cannot say of the model; nothing where it fits.
std::optional<std::string> obstacle(const ModelConfig& c, const Family& family) {
  if (c.qkv_bias != family.qkv_bias)
    return family.qkv_bias ? "has biases on q, k and v" : "has no biases on q, k and v";
  if (c.qk_norm != family.qk_norm)
    return family.qk_norm ? "normalizes the heads of q and k" : "does not normalize the heads of q and k";
  if (has_window(c, false) && !family.windows) return "has no sliding window";
  if (has_window(c, false) && !has_window(c, true) && !family.windows_of_some)
    return "has a sliding window in all layers or in none";
  if (c.turning_channels() != c.head_dim && !family.partial_rotary) return "turns all channels of a head";
  if (c.head_dim * c.heads != c.hidden && !family.own_head_dim) return "has heads of hidden / heads channels";
  const std::string& rope = c.rope_scaling.kind;
  if (family.name == "phi3" && rope != "none" && rope != "longrope")
    return "stretches rotary frequencies by longrope only";
  return std::nullopt;
}

const Family& find_family(const ModelConfig& c) {
  std::string why;
  for (const Family& family : kFamilies) {
    if (!c.family.empty() && family.name != c.family) continue;
    const auto found = obstacle(c, family);
    if (!found) return family;
    why += fmt::format("{}{} {}", why.empty() ? "" : "; ", family.name, *found);
  }
  throw ConfigError("this model is none that transformers knows: {}", why);
}

Json rope_entries(const ModelConfig& c) {
  const model::RopeScaling& r = c.rope_scaling;
  Json json{{"rope_type", r.kind}};
  // Names that older versions of transformers look for.
  if (r.kind == "longrope") json = Json{{"type", r.kind}};
  if (r.kind != "longrope") json["factor"] = r.factor;
  if (r.kind == "llama3") {
    json["low_freq_factor"] = r.low_freq_factor;
    json["high_freq_factor"] = r.high_freq_factor;
  }
  if (r.kind == "llama3" || r.kind == "yarn") json["original_max_position_embeddings"] = r.original_length;
  if (r.kind == "yarn") {
    json["beta_fast"] = r.beta_fast;
    json["beta_slow"] = r.beta_slow;
  }
  if (r.kind == "longrope") {
    // Said by the lengths already, but transformers 5 warns where it is not here.
    if (c.max_length > 0)
      json["factor"] = static_cast<double>(c.max_length) / static_cast<double>(r.original_length);
    json["short_factor"] = r.short_factors;
    json["long_factor"] = r.long_factors;
  }
  if (r.attention_factor > 0 && (r.kind == "yarn" || r.kind == "longrope"))
    json["attention_factor"] = r.attention_factor;
  return json;
}

const char* torch_name(DType dtype) {
  return dtype == DType::bf16 ? "bfloat16" : dtype == DType::f16 ? "float16" : "float32";
}

}  // namespace

std::string family_of(const ModelConfig& config) { return std::string(find_family(config).name); }

Json model_config_to_hugging_face(const ModelConfig& c, DType dtype) {
  const Family& family = find_family(c);
  const std::vector<bool> windowed = c.windowed_layers();
  Json json{{"architectures", {family.architecture}},
            {"model_type", family.name},
            {"attention_dropout", 0.0},
            {"head_dim", c.head_dim},
            {"hidden_act", "silu"},
            {"hidden_size", c.hidden},
            {"initializer_range", c.init_std},
            {"intermediate_size", c.ffn},
            {"max_position_embeddings", c.max_length},
            {"num_attention_heads", c.heads},
            {"num_hidden_layers", c.layers},
            {"num_key_value_heads", c.kv_heads},
            {"rms_norm_eps", c.norm_eps},
            {"rope_scaling", nullptr},
            {"rope_theta", c.rope_theta},
            {"tie_word_embeddings", c.tied},
            {"torch_dtype", torch_name(dtype)},
            {"use_cache", true},
            {"vocab_size", c.vocab}};
  if (!family.own_head_dim) json.erase("head_dim");
  if (family.name != "qwen2") json["attention_bias"] = false;
  if (family.name == "llama") json["mlp_bias"] = false;
  if (c.rope_scaling.kind != "none") json["rope_scaling"] = rope_entries(c);
  if (c.rope_scaling.kind == "dynamic" && c.rope_scaling.original_length != c.max_length)
    json["max_position_embeddings"] = c.rope_scaling.original_length;
  if (family.partial_rotary) {
    json["partial_rotary_factor"] =
        static_cast<double>(c.turning_channels()) / static_cast<double>(c.head_dim);
    json["original_max_position_embeddings"] =
        c.rope_scaling.kind == "longrope" ? c.rope_scaling.original_length : c.max_length;
  }
  if (family.windows) json["sliding_window"] = has_window(c, false) ? Json(c.window) : Json(nullptr);
  if (family.windows_of_some) {
    json["use_sliding_window"] = has_window(c, false);
    Json types = Json::array();
    Index full = c.layers;
    for (std::size_t i = 0; i < windowed.size(); ++i) {
      types.push_back(windowed[i] ? "sliding_attention" : "full_attention");
      if (windowed[i]) full = std::min(full, static_cast<Index>(i));
    }
    json["layer_types"] = types;
    json["max_window_layers"] = full;  // for versions without layer_types
  }
  return json;
}

}  // namespace cartan::store
