#include "cartan/model/adapters.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <iterator>

#include "cartan/core/narrow.hpp"
#include "cartan/core/text.hpp"
#include "cartan/model/parameters.hpp"

namespace cartan::model {
namespace {

constexpr std::string_view kA = ".lora_A.weight", kB = ".lora_B.weight";

bool matches(const std::string& pattern, const std::string& name) {
  if (fnmatch(pattern.c_str(), name.c_str(), 0) == 0) return true;
  return fnmatch(("*." + pattern).c_str(), name.c_str(), 0) == 0;
}

bool matches_any(const std::vector<std::string>& patterns, const std::string& name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return matches(pattern, name); });
}

bool is_target(const LoraConfig& lora, const std::string& linear) {
  return std::find(lora.targets.begin(), lora.targets.end(), kAllLinear) != lora.targets.end() ||
         matches_any(lora.targets, linear);
}

/// The names that a pattern could have meant: last parts, each once.
std::vector<std::string> last_parts() {
  std::vector<std::string> names{std::string(kAllLinear)};
  for (const std::string_view projection : kAdaptable)
    names.emplace_back(projection.substr(projection.find('.') + 1));
  return names;
}

void check_lora(const ModelConfig& config, Problems& problems) {
  const LoraConfig& lora = config.lora;
  if (lora.rank < 0) problems.add("lora.rank = {}: must not be negative", lora.rank);
  if (!lora.from.empty() && lora.rank == 0)
    problems.add("lora.from = {} needs lora.rank: adapters without a rank are none", lora.from);
  if (!lora.from.empty() && config.from.empty())
    problems.add("lora.from = {} needs the model that the adapters belong to: model.from", lora.from);
  if (lora.rank <= 0) return;
  if (!(lora.alpha > 0)) problems.add("lora.alpha = {}: must be positive", lora.alpha);
  if (!(lora.dropout >= 0 && lora.dropout < 1))
    problems.add("lora.dropout = {}: must be at least 0 and below 1", lora.dropout);
  if (lora.layers != "all" && !parse_ranges(lora.layers, config.layers)) {
    problems.add("lora.layers = {}: use all, or numbers from 0 to {} as in 0-{}", lora.layers,
                 config.layers - 1, (config.layers - 1) / 2);
    return;
  }
  if (lora.targets.empty()) problems.add("lora.targets is empty: name linear layers as in q_proj v_proj");
  for (const std::string& pattern : lora.targets) {
    if (pattern == kAllLinear) continue;
    bool found = false;
    for (Index layer = 0; layer < config.layers && !found; ++layer)
      for (const std::string_view projection : kAdaptable)
        found = found || matches(pattern, linear_name(layer, projection));
    if (found) continue;
    const std::vector<std::string> known = last_parts();
    const auto near = nearest(pattern, known);
    problems.add("lora.targets: {} names no linear layer of a block{}; there are {}", pattern,
                 near ? " (did you mean " + *near + "?)" : "", fmt::join(known, ", "));
  }
}

}  // namespace

std::string linear_name(Index layer, std::string_view projection) {
  return fmt::format("model.layers.{}.{}", layer, projection);
}
std::string adapter_a(std::string_view linear) { return std::string(linear).append(kA); }
std::string adapter_b(std::string_view linear) { return std::string(linear).append(kB); }

bool is_adapter(std::string_view parameter) { return parameter.ends_with(kA) || parameter.ends_with(kB); }

bool has_adapter(const ModelConfig& config, Index layer, std::string_view linear) {
  const LoraConfig& lora = config.lora;
  if (lora.rank <= 0) return false;
  if (lora.layers != "all") {
    const auto named = parse_ranges(lora.layers, config.layers);
    if (!named || !(*named)[narrow<std::size_t>(layer)]) return false;
  }
  return is_target(lora, std::string(linear));
}

bool is_trained(const ModelConfig& config, const std::string& parameter) {
  if (!has_frozen(config)) return true;
  return is_adapter(parameter) || matches_any(config.train_only, parameter);
}

bool has_frozen(const ModelConfig& config) { return config.lora.rank > 0 || !config.train_only.empty(); }

ModelConfig without_adapters(ModelConfig config) {
  config.lora = {};
  config.train_only.clear();
  return config;
}

void check_trained(const ModelConfig& config, Problems& problems) {
  check_lora(config, problems);
  if (config.train_only.empty()) return;
  std::vector<std::string> names, endings;
  for (const UnitSpec& unit : describe_units(without_adapters(config)))
    for (const ParameterSpec& parameter : unit.parameters) {
      names.push_back(parameter.name);
      std::vector<std::string> parts = split(parameter.name, '.');
      const std::size_t count = parts.size();
      if (count >= 2) endings.push_back(parts[count - 2] + "." + parts[count - 1]);
    }
  for (const std::string& pattern : config.train_only) {
    const bool found = std::any_of(names.begin(), names.end(),
                                   [&](const std::string& name) { return matches(pattern, name); });
    if (found) continue;
    const auto near = nearest(pattern, endings);
    problems.add("train.only: {} names no parameter{}; names are as in {}, with * for any text", pattern,
                 near ? " (did you mean " + *near + "?)" : "",
                 names[std::min<std::size_t>(1, names.size() - 1)]);
  }
}

}  // namespace cartan::model
