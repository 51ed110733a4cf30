// The configuration as the train room sees it, with messages that say where each value came from.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "cli/foreign/batch.hpp"
#include "cli/option_tables.hpp"
#include "cli/options.hpp"

namespace cartan::cli {

std::string with_sources(std::string_view message, const Sources& sources) {
  train::Config unused;
  const std::vector<Option> options = config_options(unused);
  const auto is_key = [&](std::string_view word) {
    return std::any_of(options.begin(), options.end(),
                       [&](const Option& option) { return option.key == word; });
  };
  std::string text;
  while (!message.empty()) {
    // The next word, and if it is a key with a value, all of "key = value".
    const std::size_t end = std::min(message.find_first_of(" \n"), message.size());
    const std::string_view word = message.substr(0, end);
    std::size_t taken = std::min(end + 1, message.size());
    if (message.substr(end).starts_with(" = ") && is_key(word)) {
      taken = std::min(message.find_first_of(" \n", end + 3), message.size());
      while (taken > end + 3 && std::string_view(":,;.)").find(message[taken - 1]) != std::string_view::npos)
        --taken;
      text += fmt::format("{} ({})", message.substr(0, taken), source_text(sources, word));
    } else {
      text += message.substr(0, taken);
    }
    message.remove_prefix(taken);
  }
  return text;
}

namespace {

/// Whether files or the command line say something else of the batch than the translated file.
bool is_batch_overridden(const Parsed& parsed) {
  const auto is_overridden = [&](const char* key) {
    const auto source = parsed.sources.find(key);
    return source != parsed.sources.end() &&
           !source->second.name.starts_with(parsed.translation->path + ": ");
  };
  return is_overridden("batch.global") || is_overridden("batch.micro");
}

void complete_batch(Parsed& parsed, Index replicas, Problems& problems) {
  foreign::Translation& translation = *parsed.translation;
  const std::vector<Option> options = config_options(parsed.config);
  std::vector<foreign::Setting> settings = foreign::complete_batch(translation, replicas, problems);
  for (foreign::Setting& setting : settings) {
    const auto option =
        std::find_if(options.begin(), options.end(), [&](const Option& o) { return o.key == setting.key; });
    const Source source{Source::Kind::file, translation.source_of(setting)};
    if (const auto allowed = set_value(*option, setting.text))
      problems.add("{} = {} ({}): must be {}", setting.key, setting.text, to_string(source), *allowed);
    else
      parsed.sources[setting.key] = source;
    translation.settings.push_back(std::move(setting));
  }
}

/// Replicas of the model among `world_size` ranks; nothing where the mesh does not fit, which is told later.
std::optional<Index> replicas_among(const comm::MeshShape& mesh, int world_size) {
  if (mesh.dp > 0) return mesh.dp;
  const Index others = Index{mesh.pp} * mesh.cp * mesh.tp;
  if (others < 1 || world_size % others != 0) return std::nullopt;
  return world_size / others;
}

}  // namespace

void complete_batch_without_ranks(Parsed& parsed) {
  if (!parsed.translation || is_batch_overridden(parsed)) return;
  const std::string& path = parsed.translation->path;
  const foreign::BatchTerms& batch = parsed.translation->batch;
  const auto meant = foreign::replicas_of(batch);
  Problems problems;
  if (parsed.config.mesh.dp > 0) {
    complete_batch(parsed, parsed.config.mesh.dp, problems);
  } else if (meant && *meant <= 1 << 20) {
    parsed.config.mesh.dp = static_cast<int>(*meant);
    parsed.sources["mesh.dp"] = {Source::Kind::file,
                                 fmt::format("{}: {} / ({} * {})", path, batch.global.name, batch.micro.name,
                                             batch.accumulation.name)};
  } else if (batch.has_all()) {
    complete_batch(parsed, 1, problems);  // which says that it does not divide
  } else if (foreign::needs_replicas(batch)) {
    problems.add(
        "{}: batch.global is {} times the replicas of the model, which the file does not say: give "
        "--mesh.dp or --batch.global, or --ranks to cartan config",
        path, batch.micro.name);
  }
  problems.throw_if_any("the configuration");
}

void resolve(Parsed& parsed, int world_size) {
  if (parsed.translation && !is_batch_overridden(parsed)) {
    Problems problems;
    if (const auto replicas = replicas_among(parsed.config.mesh, world_size))
      complete_batch(parsed, *replicas, problems);
    problems.throw_if_any("the configuration");
  }
  std::vector<std::string> before;
  for (const Option& option : config_options(parsed.config)) before.push_back(value_text(option));
  const auto mark_derived = [&] {
    const std::vector<Option> options = config_options(parsed.config);
    for (std::size_t i = 0; i < options.size(); ++i) {
      if (value_text(options[i]) != before[i]) parsed.sources[options[i].key] = {Source::Kind::derived};
    }
  };
  try {
    train::resolve(parsed.config, world_size);
  } catch (const ConfigError& error) {
    mark_derived();
    throw ConfigError(with_sources(error.what(), parsed.sources));
  }
  mark_derived();
}

}  // namespace cartan::cli
