// From config.json to the description of a model: entry by entry, and nothing is passed over.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>
#include <string_view>

#include "cartan/core/json.hpp"
#include "cartan/core/narrow.hpp"
#include "cartan/core/text.hpp"
#include "cartan/store/model_config_file.hpp"

namespace cartan::store {
namespace {

using model::ModelConfig;
using model::RopeScaling;

// What a family takes where its config.json says nothing.
struct Family {
  std::string_view name;
  double norm_eps;
  Index max_length;
  Index head_dim;  // 0: hidden / heads
  Index kv_heads;  // 0: heads
  Index window;    // 0: none
};
constexpr std::array kFamilies{
    Family{"llama", 1e-6, 2048, 0, 0, 0}, Family{"mistral", 1e-6, 131072, 0, 8, 4096},
    Family{"qwen2", 1e-6, 32768, 0, 32, 4096}, Family{"qwen3", 1e-6, 32768, 128, 32, 4096},
    Family{"phi3", 1e-5, 4096, 0, 0, 0}};

// Entries that do not change what the model computes: names, tokens of the tokenizer, settings of generation
// and of the program that wrote them.
constexpr std::array<std::string_view, 61> kWithoutEffect{"_attn_implementation",
                                                          "_attn_implementation_autoset",
                                                          "_commit_hash",
                                                          "_name_or_path",
                                                          "architectures",
                                                          "auto_map",
                                                          "bad_words_ids",
                                                          "begin_suppress_tokens",
                                                          "bos_token_id",
                                                          "chunk_size_feed_forward",
                                                          "cross_attention_hidden_size",
                                                          "decoder_start_token_id",
                                                          "diversity_penalty",
                                                          "do_sample",
                                                          "dtype",
                                                          "early_stopping",
                                                          "encoder_no_repeat_ngram_size",
                                                          "eos_token_id",
                                                          "exponential_decay_length_penalty",
                                                          "finetuning_task",
                                                          "forced_bos_token_id",
                                                          "forced_eos_token_id",
                                                          "id2label",
                                                          "initializer_range",
                                                          "is_decoder",
                                                          "is_encoder_decoder",
                                                          "keys_to_ignore_at_inference",
                                                          "label2id",
                                                          "length_penalty",
                                                          "max_length",
                                                          "min_length",
                                                          "model_type",
                                                          "name_or_path",
                                                          "no_repeat_ngram_size",
                                                          "num_beam_groups",
                                                          "num_beams",
                                                          "num_return_sequences",
                                                          "output_attentions",
                                                          "output_hidden_states",
                                                          "output_scores",
                                                          "pad_token_id",
                                                          "prefix",
                                                          "pretraining_tp",
                                                          "problem_type",
                                                          "remove_invalid_values",
                                                          "repetition_penalty",
                                                          "return_dict",
                                                          "return_dict_in_generate",
                                                          "sep_token_id",
                                                          "suppress_tokens",
                                                          "task_specific_params",
                                                          "temperature",
                                                          "tokenizer_class",
                                                          "top_k",
                                                          "top_p",
                                                          "torch_dtype",
                                                          "transformers_version",
                                                          "typical_p",
                                                          "unsloth_fixed",
                                                          "unsloth_version",
                                                          "use_cache"};

/// Entries that are off: null, false, zero, or nothing.
bool is_off(const Json& value) {
  if (value.is_number()) return value.get<double>() == 0;
  return value.is_null() || (value.is_boolean() && !value.get<bool>()) || value.empty() ||
         (value.is_string() && value.get<std::string>().empty());
}

/// An object whose entries are taken one by one; what is left over is a problem.
class Entries {
 public:
  Entries(const Json& json, std::string prefix, Problems& problems)
      : json_(json), prefix_(std::move(prefix)), problems_(problems) {}

  const Json* find(const std::string& key) {
    taken_.insert(key);
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  bool has(const std::string& key) const { return json_.contains(key); }
  Index whole(const std::string& key, std::optional<Index> otherwise = {}, Index lowest = 1) {
    const Json* const value = find(key);
    if (value == nullptr) return missing(key, otherwise, Index{1});
    if (value->is_number_integer() && value->get<Index>() >= lowest && value->get<Index>() <= kMost)
      return value->get<Index>();
    wrong(key, *value, fmt::format("a whole number from {} to {}", lowest, kMost));
    return lowest;
  }
  double number(const std::string& key, std::optional<double> otherwise = {}) {
    const Json* const value = find(key);
    if (value == nullptr) return missing(key, otherwise, 1.0);
    if (value->is_number() && value->get<double>() > 0 && std::isfinite(value->get<double>()))
      return value->get<double>();
    wrong(key, *value, "a positive number");
    return 1.0;
  }
  bool flag(const std::string& key, bool otherwise) {
    const Json* const value = find(key);
    if (value == nullptr) return otherwise;
    if (value->is_boolean()) return value->get<bool>();
    wrong(key, *value, "true or false");
    return otherwise;
  }
  std::string text(const std::string& key, const std::string& otherwise) {
    const Json* const value = find(key);
    if (value == nullptr) return otherwise;
    if (value->is_string()) return value->get<std::string>();
    wrong(key, *value, "a text");
    return otherwise;
  }
  std::vector<double> numbers(const std::string& key) {
    const Json* const value = find(key);
    if (value == nullptr) return missing(key, std::optional<std::vector<double>>(), {});
    if (value->is_array() &&
        std::all_of(value->begin(), value->end(), [](const Json& v) { return v.is_number(); }))
      return value->get<std::vector<double>>();
    wrong(key, *value, "a list of numbers");
    return {};
  }
  /// An entry that cartan follows with this value only.
  void only(const std::string& key, const Json& value) {
    const Json* const found = find(key);
    if (found != nullptr && *found != value)
      problems_.add("{}{} = {}: cartan has only {}", prefix_, key, shown(*found), shown(value));
  }
  void wrong(const std::string& key, const Json& value, const std::string& expected) {
    problems_.add("{}{} = {}: must be {}", prefix_, key, shown(value), expected);
  }
  void ignore(std::string_view key) { taken_.insert(std::string(key)); }
  /// What nobody asked for and is not off.
  void report_rest() {
    for (const auto& [key, value] : json_.items())
      if (!taken_.contains(key) && !is_off(value))
        problems_.add(
            "{}{} = {}: cartan does not know this entry, which may change what the model computes; delete it "
            "if it does not",
            prefix_, shown_text(key), shown(value));
  }

 private:
  static constexpr Index kMost = Index{1} << 30;

  template <class T>
  T missing(const std::string& key, const std::optional<T>& otherwise, T instead) {
    if (!otherwise) problems_.add("{}{} is missing", prefix_, key);
    return otherwise.value_or(std::move(instead));
  }
  static std::string shown_text(const std::string& text) {
    return text.size() <= 60 ? text : text.substr(0, 60) + "...";
  }
  static std::string shown(const Json& value) {
    return shown_text(value.dump(-1, ' ', true, Json::error_handler_t::replace));
  }

  const Json& json_;
  std::string prefix_;
  Problems& problems_;
  std::set<std::string> taken_;
};

/// The factor of attention that mscale and mscale_all_dim stand for.
double attention_from_mscale(double factor, double mscale, double mscale_all_dim) {
  const auto of = [&](double scale) { return factor <= 1 ? 1.0 : 0.1 * scale * std::log(factor) + 1.0; };
  return of(mscale) / of(mscale_all_dim);
}

/// transformers 4 has rope_theta and rope_scaling, transformers 5 rope_parameters.
void read_rope(Entries& entries, const Family& family, ModelConfig& c, Problems& problems) {
  c.rope_theta = entries.number("rope_theta", 10000.0);
  double share = entries.number("partial_rotary_factor", 1.0);
  const Json* rope = entries.find("rope_parameters");
  std::string prefix = "rope_parameters.";
  if (const Json* const older = entries.find("rope_scaling"); rope == nullptr) {
    rope = older;
    prefix = "rope_scaling.";
  }
  const Index original = entries.whole("original_max_position_embeddings", 0, 0);
  if (rope != nullptr && !rope->is_object()) {
    problems.add("{}: must be an object", prefix.substr(0, prefix.size() - 1));
    return;
  }
  if (rope != nullptr) {
    Entries inner(*rope, prefix, problems);
    RopeScaling& r = c.rope_scaling;
    const std::string older_kind = inner.text("type", "default");
    r.kind = inner.text("rope_type", older_kind);
    if (r.kind == "default") r.kind = "none";
    // Names that Phi-3 had before.
    if (family.name == "phi3" && (r.kind == "su" || r.kind == "yarn")) r.kind = "longrope";
    c.rope_theta = inner.number("rope_theta", c.rope_theta);
    share = inner.number("partial_rotary_factor", share);
    const Index inner_original = inner.whole("original_max_position_embeddings", 0, 0);
    // Phi-3's own entry counts more.
    r.original_length = original > 0 ? original : inner_original > 0 ? inner_original : c.max_length;
    if (r.kind == "dynamic") r.original_length = c.max_length;
    const double ratio = static_cast<double>(c.max_length) / static_cast<double>(r.original_length);
    if (r.kind == "linear" || r.kind == "dynamic" || r.kind == "llama3") r.factor = inner.number("factor");
    if (r.kind == "llama3") {
      r.low_freq_factor = inner.number("low_freq_factor");
      r.high_freq_factor = inner.number("high_freq_factor");
    }
    if (r.kind == "yarn") {
      r.factor = inner.number("factor", ratio);
      r.beta_fast = inner.number("beta_fast", 32.0);
      r.beta_slow = inner.number("beta_slow", 1.0);
      inner.only("truncate", true);
      const double mscale = inner.number("mscale", 0.0), all = inner.number("mscale_all_dim", 0.0);
      if (mscale > 0 && all > 0) r.attention_factor = attention_from_mscale(r.factor, mscale, all);
    }
    if (r.kind == "longrope") {
      r.short_factors = inner.numbers("short_factor");
      r.long_factors = inner.numbers("long_factor");
      const double factor = inner.number("factor", ratio);
      if (factor != ratio && r.original_length > 1)
        r.attention_factor =
            factor > 1 ? std::sqrt(1 + std::log(factor) / std::log(static_cast<double>(r.original_length)))
                       : 1.0;
    }
    if (r.kind == "yarn" || r.kind == "longrope")
      r.attention_factor = inner.number("attention_factor", r.attention_factor);
    inner.report_rest();
  }
  if (share == 1) return;
  if (share > 1) {
    problems.add("partial_rotary_factor = {}: must not be above 1", share);
    return;
  }
  c.rotary_dim = static_cast<Index>(static_cast<double>(c.head_dim) * share);
  if (c.rotary_dim < 2)
    problems.add("partial_rotary_factor = {}: leaves less than a pair of the {} channels of a head", share,
                 c.head_dim);
}

/// The layers that see a window, as ModelConfig has them.
void read_window(Entries& entries, const Family& family, ModelConfig& c, Problems& problems) {
  const bool may_be_off = family.name == "qwen2" || family.name == "qwen3";
  const Json* const value = entries.find("sliding_window");
  const bool is_used = may_be_off ? entries.flag("use_sliding_window", false) : true;
  // Null switches it off; without the entry the family's default counts.
  const bool is_null = value == nullptr && entries.has("sliding_window");
  Index window = is_null ? 0 : entries.whole("sliding_window", family.window, 0);
  if (family.name == "llama") window = 0;
  const Index first = may_be_off ? entries.whole("max_window_layers", 28, 0) : 0;
  std::vector<bool> windowed(narrow<std::size_t>(c.layers), is_used && window > 0);
  if (may_be_off)
    for (std::size_t i = 0; i < windowed.size(); ++i) windowed[i] = windowed[i] && narrow<Index>(i) >= first;
  if (const Json* const types = entries.find("layer_types")) {
    if (!types->is_array() || types->size() != windowed.size()) {
      entries.wrong("layer_types", *types, fmt::format("a list of {} texts", windowed.size()));
      return;
    }
    for (std::size_t i = 0; i < windowed.size(); ++i) {
      const Json& type = (*types)[i];
      if (type != "full_attention" && type != "sliding_attention")
        entries.wrong(fmt::format("layer_types[{}]", i), type, "full_attention or sliding_attention");
      windowed[i] = type == "sliding_attention";
      if (windowed[i] && window == 0)
        problems.add("layer_types[{}] = sliding_attention, but there is no sliding_window", i);
    }
  }
  if (std::find(windowed.begin(), windowed.end(), true) == windowed.end()) return;
  c.window = window;
  c.window_layers = format_ranges(windowed);
}

}  // namespace

ModelConfig model_config_from_hugging_face(const Json& json, const std::string& where) {
  if (!json.is_object())
    throw DataError("{}: expected a JSON object, found a JSON {}", where, json.type_name());
  Problems problems;
  Entries entries(json, "", problems);
  const std::string type = entries.text("model_type", "");
  const auto family =
      std::find_if(kFamilies.begin(), kFamilies.end(), [&](const Family& f) { return f.name == type; });
  if (family == kFamilies.end()) {
    std::vector<std::string_view> names;
    names.reserve(kFamilies.size());
    for (const Family& f : kFamilies) names.push_back(f.name);
    throw DataError("{}: model_type = \"{}\": cartan reads {}", where, type.substr(0, 60),
                    fmt::join(names, ", "));
  }
  ModelConfig c;
  c.family = type;
  c.vocab = entries.whole("vocab_size");
  c.hidden = entries.whole("hidden_size");
  c.layers = entries.whole("num_hidden_layers");
  c.heads = entries.whole("num_attention_heads");
  c.kv_heads = entries.whole("num_key_value_heads", family->kv_heads > 0 ? family->kv_heads : c.heads);
  c.head_dim = entries.whole("head_dim", family->head_dim > 0 ? family->head_dim : c.hidden / c.heads);
  c.ffn = entries.whole("intermediate_size");
  c.norm_eps = entries.number("rms_norm_eps", family->norm_eps);
  c.max_length = entries.whole("max_position_embeddings", family->max_length);
  c.tied = entries.flag("tie_word_embeddings", false);
  c.qkv_bias = type == "qwen2";
  c.qk_norm = type == "qwen3";
  if (const Json* const deviation = entries.find("initializer_range");
      deviation != nullptr && !is_off(*deviation))
    c.init_std = entries.number("initializer_range");
  entries.only("hidden_act", "silu");
  // Qwen2 has its three biases whatever these say.
  if (type != "qwen2") entries.only("attention_bias", false);
  entries.ignore("attention_bias");
  entries.only("mlp_bias", false);
  for (const char* const dropout : {"attention_dropout", "embd_pdrop", "resid_pdrop"})
    if (const Json* const value = entries.find(dropout); value != nullptr && !is_off(*value))
      entries.wrong(dropout, *value, "0: cartan trains without dropout");
  read_rope(entries, *family, c, problems);
  if (c.layers <= model::kMostLayers) read_window(entries, *family, c, problems);
  for (const std::string_view key : kWithoutEffect) entries.ignore(key);
  entries.report_rest();
  if (problems.empty()) model::check(c, problems);
  if (!problems.empty()) throw DataError("{}: {}", where, fmt::join(problems.lines(), "\n  "));
  return c;
}

ModelConfig read_model_config(const std::filesystem::path& path) {
  return model_config_from_hugging_face(read_json(path), path.string());
}

}  // namespace cartan::store
