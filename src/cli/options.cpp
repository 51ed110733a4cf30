#include "cli/options.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "cartan/core/file.hpp"
#include "cartan/core/text.hpp"
#include "cartan/core/version.hpp"
#include "cartan/store/adapter_folder.hpp"
#include "cartan/train/model_source.hpp"
#include "cli/command_line.hpp"
#include "cli/foreign/translate.hpp"
#include "cli/ini.hpp"
#include "cli/option_tables.hpp"

namespace cartan::cli {
namespace {

constexpr std::size_t kMostProblems = 20;

struct Assignment {
  std::string key, text;
  Source source;
};

std::vector<std::string> keys_of(std::span<const Option> options) {
  std::vector<std::string> keys;
  for (const Option& option : options) keys.push_back(option.key);
  return keys;
}

const Option* find(std::span<const Option> options, std::string_view key) {
  const auto found =
      std::find_if(options.begin(), options.end(), [&](const Option& o) { return o.key == key; });
  return found == options.end() ? nullptr : &*found;
}

/// Throws all problems in one message. Wrong words decide the exit code: nothing else was looked at in
/// earnest.
void throw_problems(const Problems& usage, const Problems& values, const std::string& rest) {
  std::vector<std::string> lines = usage.lines();
  lines.insert(lines.end(), values.lines().begin(), values.lines().end());
  if (lines.empty()) return;
  std::string text = lines.front();
  if (lines.size() > 1) {
    text = fmt::format("{} problems in the options and files", lines.size());
    for (std::size_t i = 0; i < std::min(lines.size(), kMostProblems); ++i) text += "\n  " + lines[i];
    if (lines.size() > kMostProblems) text += fmt::format("\n  and {} more", lines.size() - kMostProblems);
  }
  text += rest;
  if (usage.empty()) throw ConfigError(text);
  throw UsageError(text);
}

void read_file_into(const std::string& path, std::span<const Option> options,
                    std::vector<Assignment>& assignments, Problems& problems) {
  const std::vector<std::string> keys = keys_of(options);
  for (IniEntry& entry : parse_ini(read_file(path), path, problems)) {
    const std::string at = fmt::format("{}:{}", path, entry.line);
    if (find(options, entry.key)) {
      assignments.push_back({std::move(entry.key), std::move(entry.value), {Source::Kind::file, at}});
    } else if (const auto reason = later_key(entry.key)) {
      problems.add("{}: {}: {}", at, printable(entry.key), *reason);
    } else {
      const auto near = nearest(std::string_view(entry.key).substr(0, 64), keys);
      problems.add("{}: unknown key {}{}", at, printable(entry.key),
                   near ? fmt::format(" (did you mean {}?)", *near) : std::string());
    }
  }
}

/// "a, b and c" for a message.
std::string names_of(const std::vector<std::string>& names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

/// What a refused file says besides, so that it has to be looked through only once.
std::string rest_of(const foreign::Translation& translation) {
  std::vector<std::string> taken, unused, unknown;
  for (const foreign::Setting& setting : translation.settings)
    if (!setting.foreign.empty()) taken.push_back(printable(setting.foreign));
  taken.erase(std::unique(taken.begin(), taken.end()), taken.end());
  for (const foreign::Remark& remark : translation.unused) unused.push_back(printable(remark.foreign));
  for (const foreign::Remark& remark : translation.unknown)
    unknown.push_back(fmt::format("{} ({})", printable(remark.foreign), printable(remark.why)));
  std::string text;
  for (const auto& [title, names] :
       {std::pair{"taken", &taken}, {"without meaning here", &unused}, {"unknown", &unknown}})
    if (!names->empty()) text += fmt::format("\n  {}: {}", title, names_of(*names));
  return text;
}

void read_foreign_into(const std::string& path, Parsed& parsed, std::vector<Assignment>& assignments,
                       Problems& problems) {
  parsed.translation = foreign::translate(read_file(path), path);
  const foreign::Translation& translation = *parsed.translation;
  for (const foreign::Setting& setting : translation.settings)
    if (!setting.key.empty())
      assignments.push_back(
          {setting.key, setting.text, {Source::Kind::file, translation.source_of(setting)}});
  for (const std::string& line : translation.refused) problems.add("{}", line);
}

/// The text of the key's last assignment; empty without one.
std::string last_of(const std::vector<Assignment>& assignments, std::string_view key) {
  const auto last = std::find_if(assignments.rbegin(), assignments.rend(),
                                 [&](const Assignment& a) { return a.key == key; });
  return last == assignments.rend() ? std::string() : last->text;
}

/// The model that wins, a preset or one that exists, fills the whole section before any other value is set.
void apply_model(const std::vector<Assignment>& assignments, Parsed& parsed) {
  const std::string preset = last_of(assignments, "model.preset"), from = last_of(assignments, "model.from");
  Source source;
  if (!from.empty()) {
    if (!preset.empty())
      throw ConfigError("model.from = {} and model.preset = {}: use one of them", from, preset);
    parsed.config.model = train::describe_model(from);
    source = {Source::Kind::model, from};
  } else {
    const std::vector<std::string> known = model::preset_names();
    if (std::find(known.begin(), known.end(), preset) == known.end()) return;  // apply() reports it
    parsed.config.model = model::preset(preset);
    source = {Source::Kind::preset, preset};
  }
  train::Config unused;
  for (const Option& option : config_options(unused)) {
    const std::string_view section = section_of(option.key);
    if (section == "model" || (section == "lora" && parsed.config.model.lora.rank > 0))
      parsed.sources[option.key] = source;
  }
}

/// Adapters that exist fill their section likewise.
void apply_adapters(const std::vector<Assignment>& assignments, Parsed& parsed) {
  const std::string from = last_of(assignments, "lora.from");
  if (from.empty()) return;
  parsed.config.model.lora = store::AdapterFolder(from).lora();
  train::Config unused;
  for (const Option& option : config_options(unused))
    if (section_of(option.key) == "lora") parsed.sources[option.key] = {Source::Kind::model, from};
}

void apply(const std::vector<Assignment>& assignments, std::span<const Option> options, Sources& sources,
           Problems& usage, Problems& values) {
  for (const Assignment& assignment : assignments) {
    const Option& option = *find(options, assignment.key);
    const bool is_own = section_of(option.key).empty();
    if (const auto allowed = set_value(option, assignment.text)) {
      if (is_own)
        usage.add("--{} {}: must be {}", option.key, printable(assignment.text), *allowed);
      else
        values.add("{} = {} ({}): must be {}", option.key, printable(assignment.text),
                   to_string(assignment.source), *allowed);
    } else if (!is_own) {
      sources[option.key] = assignment.source;
    }
  }
}

void check_required(const CommandSpec& spec, const std::vector<Assignment>& assignments, Problems& usage) {
  for (const Option& option : spec.options) {
    const bool is_given = std::any_of(assignments.begin(), assignments.end(),
                                      [&](const Assignment& a) { return a.key == option.key; });
    if (option.is_required && !is_given)
      usage.add("cartan {} needs --{} {} (see cartan {} --help)", spec.name, option.key, placeholder(option),
                spec.name);
  }
}

}  // namespace

std::string to_string(const Source& source) {
  switch (source.kind) {
    case Source::Kind::preset:
      return "preset " + source.name;
    case Source::Kind::model:
      return "model " + source.name;
    case Source::Kind::file:
      return source.name;
    case Source::Kind::command_line:
      return "command line";
    case Source::Kind::derived:
      return "derived";
  }
  throw InternalError("a source of unknown kind");
}

std::string source_text(const Sources& sources, std::string_view key) {
  const auto found = sources.find(key);
  return found == sources.end() ? "default" : to_string(found->second);
}

Parsed parse(const CommandSpec& spec, std::span<const std::string> words) {
  Parsed parsed;
  std::vector<Option> options = config_options(parsed.config);
  Problems usage, values;
  const CommandLine line = read_command_line(spec, options, words, usage, values);
  parsed.words = line.words;
  parsed.config_files = line.config_files;

  std::vector<Assignment> assignments;
  if (line.foreign_file) read_foreign_into(*line.foreign_file, parsed, assignments, values);
  for (const std::string& path : line.config_files) read_file_into(path, options, assignments, values);
  for (const auto& [key, text] : line.values) assignments.push_back({key, text, {}});

  options.insert(options.end(), spec.options.begin(), spec.options.end());
  apply_model(assignments, parsed);
  apply_adapters(assignments, parsed);
  apply(assignments, options, parsed.sources, usage, values);
  check_required(spec, assignments, usage);
  const bool is_refused = parsed.translation && !parsed.translation->refused.empty();
  throw_problems(usage, values, is_refused ? rest_of(*parsed.translation) : std::string());
  return parsed;
}

std::string to_ini(const train::Config& config, const Sources& sources) {
  train::Config copy = config;
  std::string text =
      fmt::format("# Configuration of cartan {}; behind each value is where it came from.\n", version());
  std::string section;
  for (const Option& option : config_options(copy)) {
    if (section != section_of(option.key)) {
      section = section_of(option.key);
      text += fmt::format("\n[{}]\n", section);
    }
    const std::string entry =
        fmt::format("{} = {}", option.key.substr(section.size() + 1), ini_value(value_text(option)));
    text += fmt::format("{:<39} # {}\n", entry, printable(source_text(sources, option.key), 4096));
  }
  return text;
}

std::string to_ini(const Parsed& parsed) {
  std::string text;
  if (parsed.translation)
    for (const std::string& line : foreign::report_lines(*parsed.translation)) text += "# " + line + "\n";
  return text + (text.empty() ? "" : "#\n") + to_ini(parsed.config, parsed.sources);
}

}  // namespace cartan::cli
