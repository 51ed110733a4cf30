#include "cartan/store/adapter_folder.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string_view>

#include "cartan/core/file.hpp"
#include "cartan/core/json.hpp"
#include "cartan/core/narrow.hpp"
#include "cartan/core/text.hpp"
#include "cartan/model/adapters.hpp"
#include "cartan/model/parameters.hpp"
#include "cartan/store/model_config_file.hpp"
#include "store/hugging_face/passed_on.hpp"

namespace cartan::store {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigFile = "adapter_config.json";
constexpr const char* kTensorFile = "adapter_model.safetensors";
constexpr std::string_view kPrefix = "base_model.model.";

// Entries that say how adapters came to be, or which there are, which their tensors say too.
constexpr std::array kWithoutEffect{"alora_invocation_tokens",
                                    "auto_mapping",
                                    "base_model_name_or_path",
                                    "corda_config",
                                    "ensure_weight_tying",
                                    "eva_config",
                                    "exclude_modules",
                                    "inference_mode",
                                    "init_lora_weights",
                                    "layer_replication",
                                    "layers_pattern",
                                    "layers_to_transform",
                                    "loftq_config",
                                    "lora_alpha",
                                    "lora_dropout",
                                    "megatron_config",
                                    "megatron_core",
                                    "peft_type",
                                    "peft_version",
                                    "qalora_group_size",
                                    "r",
                                    "revision",
                                    "runtime_config",
                                    "target_modules",
                                    "task_type",
                                    "use_rslora"};
// Of these the two that do have one unless they are empty.
constexpr std::array kMustBeEmpty{"alora_invocation_tokens", "layer_replication"};

bool is_neutral(const Json& value) {
  return value.is_null() || value == false || (value.is_structured() && value.empty()) || value == "" ||
         value == "none";
}

template <class Names>
bool is_among(const Names& names, const std::string& name) {
  return std::any_of(names.begin(), names.end(), [&](const char* other) { return name == other; });
}

/// The parameter that a tensor of the file holds.
std::optional<std::string> parameter_of(const std::string& tensor) {
  if (!tensor.starts_with(kPrefix)) return std::nullopt;
  return tensor.substr(kPrefix.size());
}

std::string tensor_of(const std::string& parameter) { return std::string(kPrefix) + parameter; }

/// The layer and the projection of "model.layers.3.self_attn.q_proj.lora_A.weight".
struct Place {
  Index layer = 0;
  std::string projection;
};
std::optional<Place> place_of(const std::string& parameter) {
  for (const std::string_view projection : model::kAdaptable) {
    const std::size_t at = parameter.find("." + std::string(projection) + ".lora_");
    constexpr std::string_view kLayers = "model.layers.";
    if (at == std::string::npos || !parameter.starts_with(kLayers)) continue;
    const std::string number = parameter.substr(kLayers.size(), at - kLayers.size());
    const bool is_number =
        !number.empty() && number.size() <= 6 &&
        std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!is_number) return std::nullopt;
    Place place{std::stol(number), std::string(projection)};
    const std::string linear = model::linear_name(place.layer, projection);
    if (parameter == model::adapter_a(linear) || parameter == model::adapter_b(linear)) return place;
  }
  return std::nullopt;
}

std::string last_part(const std::string& projection) { return projection.substr(projection.find('.') + 1); }

/// Targets and layers by which these linear layers, and no others, have adapters.
void name_targets(const std::set<std::string>& projections, const std::set<Index>& layers,
                  const std::set<std::string>& linears, Index model_layers, model::LoraConfig& lora) {
  lora.targets.clear();
  lora.layers = "all";
  if (linears.size() != projections.size() * layers.size()) {
    lora.targets.assign(linears.begin(), linears.end());
    return;
  }
  for (const std::string& projection : projections) lora.targets.push_back(last_part(projection));
  std::vector<bool> named(narrow<std::size_t>(model_layers), false);
  for (const Index layer : layers) named[narrow<std::size_t>(layer)] = true;
  lora.layers = format_ranges(named);
}

double number(const Json& json, const char* key, const std::string& where) {
  const Json value = json.value(key, Json());
  if (!value.is_number()) throw DataError("{}: {} = {}: expected a number", where, key, value.dump());
  return value.get<double>();
}

}  // namespace

bool is_adapter_folder(const fs::path& path) {
  return fs::is_regular_file(path / kConfigFile) && !fs::is_regular_file(path / "config.json");
}

AdapterFolder::AdapterFolder(const fs::path& path) : path_(path), file_(path / kTensorFile) {
  const std::string where = (path / kConfigFile).string();
  const Json json = read_json(where);
  if (!json.is_object()) throw DataError("{}: no JSON object", where);
  Problems problems;
  if (json.value("peft_type", Json()) != "LORA")
    problems.add("peft_type = {}: only LORA is known", json.value("peft_type", Json()).dump());
  for (const auto& [key, value] : json.items())
    if ((!is_among(kWithoutEffect, key) || is_among(kMustBeEmpty, key)) && !is_neutral(value))
      problems.add("{} = {} is not supported", key, value.dump());
  if (!problems.empty()) throw DataError("{}:\n  {}", where, fmt::join(problems.lines(), "\n  "));
  const auto rank = integers_of(Json::array({json.value("r", Json())}));
  if (!rank || rank->front() < 1)
    throw DataError("{}: r = {}: expected a whole number, at least 1", where, json.value("r", Json()).dump());
  lora_.rank = rank->front();
  lora_.alpha = number(json, "lora_alpha", where);
  if (!(lora_.alpha > 0) || !std::isfinite(lora_.alpha))
    throw DataError("{}: lora_alpha = {}: must be positive", where, lora_.alpha);
  // With rank-stabilized scaling the product is divided by the root of the rank.
  if (json.value("use_rslora", Json()) == true) lora_.alpha *= std::sqrt(static_cast<double>(lora_.rank));
  if (json.contains("lora_dropout")) lora_.dropout = number(json, "lora_dropout", where);
  const Json base = json.value("base_model_name_or_path", Json());
  if (base.is_string()) base_ = base.get<std::string>();

  std::set<std::string> projections, linears;
  std::set<Index> layers;
  for (const NamedTensor& tensor : file_.tensors()) {
    const auto parameter = parameter_of(tensor.name);
    const auto place = parameter ? place_of(*parameter) : std::nullopt;
    if (!place) {
      problems.add("{} belongs to no adapter of a linear layer that cartan knows: {}", tensor.name,
                   fmt::join(model::kAdaptable, ", "));
      continue;
    }
    projections.insert(place->projection);
    layers.insert(place->layer);
    linears.insert(model::linear_name(place->layer, place->projection));
  }
  if (linears.empty() && problems.empty()) problems.add("there is no adapter");
  if (!problems.empty())
    throw DataError(
        "{}:\n  {}", (path / kTensorFile).string(),
        fmt::join(std::span(problems.lines()).first(std::min<std::size_t>(20, problems.lines().size())),
                  "\n  "));
  name_targets(projections, layers, linears, *layers.rbegin() + 1, lora_);
  // Which layers the model has is not known here: those up to the last are named one by one.
  if (lora_.layers == "all" && linears.size() == projections.size() * layers.size())
    lora_.layers = layers.size() == 1 ? "0" : fmt::format("0-{}", *layers.rbegin());
}

void AdapterFolder::check(const model::ModelConfig& config) const {
  Problems problems;
  std::set<std::string> known;
  for (const model::UnitSpec& unit : model::describe_units(config))
    for (const model::ParameterSpec& parameter : unit.parameters) {
      if (!place_of(parameter.name)) continue;
      known.insert(parameter.name);
      if (!has(parameter.name)) {
        problems.add("{} [{}] is missing", tensor_of(parameter.name), fmt::join(parameter.shape, ", "));
        continue;
      }
      const NamedTensor& tensor = file_.tensor(tensor_of(parameter.name));
      const bool has_type =
          tensor.dtype == DType::f32 || tensor.dtype == DType::bf16 || tensor.dtype == DType::f16;
      if (tensor.shape != parameter.shape || !has_type)
        problems.add("{} is [{}] in {}, expected [{}] in fp32, bf16 or fp16", tensor.name,
                     fmt::join(tensor.shape, ", "), name_of(tensor.dtype), fmt::join(parameter.shape, ", "));
    }
  for (const NamedTensor& tensor : file_.tensors())
    if (!known.contains(*parameter_of(tensor.name)))
      problems.add("{} belongs to an adapter that lora.targets and lora.layers do not name", tensor.name);
  if (problems.empty()) return;
  const std::size_t shown = std::min<std::size_t>(20, problems.lines().size());
  throw DataError("{}: the adapters are not those of the model:\n  {}", path_.string(),
                  fmt::join(std::span(problems.lines()).first(shown), "\n  "));
}

bool AdapterFolder::has(const std::string& parameter) const { return file_.contains(tensor_of(parameter)); }

void AdapterFolder::read(const std::string& parameter, Index first, Index count, float* out) const {
  read_floats(file_.tensor(tensor_of(parameter)), first, count, out);
}

FolderReport write_adapter_folder(const fs::path& folder, const model::ModelConfig& config,
                                  const std::string& base, const ReadParameter& read,
                                  const FolderOptions& options) {
  if (family_of(model::without_adapters(config)) == "phi3")
    throw ConfigError(
        "a Phi-3 model's files join q, k, v and gate, up, so that PEFT knows no adapters of each: export the "
        "merged model (--merge, export.merge)");
  check_export_folder(folder, options.overwrite);
  std::vector<NamedTensor> tensors;
  std::vector<std::vector<float>> values;
  std::set<std::string> projections, linears;
  std::set<Index> layers;
  for (const model::UnitSpec& unit : model::describe_units(config))
    for (const model::ParameterSpec& parameter : unit.parameters) {
      const auto place = place_of(parameter.name);
      if (!place) continue;
      projections.insert(last_part(place->projection));
      layers.insert(place->layer);
      linears.insert(model::linear_name(place->layer, place->projection));
      std::vector<float>& own = values.emplace_back(narrow<std::size_t>(parameter.elements()));
      read(parameter.name, 0, parameter.elements(), own.data());
      tensors.push_back({tensor_of(parameter.name), DType::f32, parameter.shape, {}});
    }
  for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].bytes = std::as_bytes(std::span(values[i]));

  Json json{{"peft_type", "LORA"},
            {"task_type", "CAUSAL_LM"},
            {"base_model_name_or_path", base.empty() ? Json(nullptr) : Json(base)},
            {"inference_mode", true},
            {"r", config.lora.rank},
            {"lora_alpha", config.lora.alpha},
            {"lora_dropout", config.lora.dropout},
            {"bias", "none"},
            {"fan_in_fan_out", false},
            {"init_lora_weights", true},
            {"use_rslora", false},
            {"use_dora", false},
            {"modules_to_save", nullptr}};
  // PEFT wants whole numbers where they are.
  if (config.lora.alpha == std::floor(config.lora.alpha))
    json["lora_alpha"] = static_cast<std::int64_t>(config.lora.alpha);
  if (linears.size() == projections.size() * layers.size()) {
    json["target_modules"] = projections;
    json["layers_to_transform"] = std::ssize(layers) == config.layers
                                      ? Json(nullptr)
                                      : Json(std::vector<Index>(layers.begin(), layers.end()));
  } else {
    json["target_modules"] = linears;
    json["layers_to_transform"] = nullptr;
  }
  remove_parameters(folder, {kTensorFile});
  write_safetensors(folder / kTensorFile, tensors);
  write_file_atomically(folder / kConfigFile, json.dump(2) + "\n");
  pass_on(options.tokenizer_from, folder);
  return {narrow<std::uint64_t>(fs::file_size(folder / kTensorFile)), 1};
}

}  // namespace cartan::store
