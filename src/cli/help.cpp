#include "cli/help.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/command_line.hpp"
#include "cli/option_tables.hpp"

namespace cartan::cli {
namespace {

constexpr std::size_t kTextColumn = 38, kLastColumn = 110;

std::string exit_code_text(ExitCode code) {
  switch (code) {
    case ExitCode::done:
      return "done";
    case ExitCode::usage:
      return "wrong words on the command line";
    case ExitCode::bad_data:
      return "bad data in a file";
    case ExitCode::missing_input:
      return "a file is missing";
    case ExitCode::internal:
      return "a defect of cartan";
    case ExitCode::environment:
      return "the environment: MPI, device, memory";
    case ExitCode::io:
      return "reading or writing failed";
    case ExitCode::stopped_early:
      return "stopped early after a checkpoint; start again to go on";
    case ExitCode::configuration:
      return "a configuration that cannot work";
    case ExitCode::diverged:
      return "numbers diverged";
    case ExitCode::peer:
      return "a rank hung or died";
  }
  throw InternalError("an exit code without a text");
}

/// `left` in its column, then the words of `text` in theirs, broken where the line is full.
std::string entry(const std::string& left, const std::string& text) {
  std::string out = "  " + left;
  std::size_t column = out.size();
  if (column + 2 > kTextColumn) {
    out += "\n";
    column = 0;
  }
  out += std::string(kTextColumn - column, ' ');
  column = kTextColumn;
  bool is_first = true;
  for (const std::string& word : split_words(text)) {
    if (!is_first && column + 1 + word.size() > kLastColumn) {
      out += "\n" + std::string(kTextColumn, ' ');
      column = kTextColumn;
    } else if (!is_first) {
      out += " ";
      ++column;
    }
    out += word;
    column += word.size();
    is_first = false;
  }
  return out + "\n";
}

std::string option_entry(const Option& option, const std::string& further_name) {
  std::string left = "--" + option.key;
  for (const std::string& name : {option.short_name, further_name}) {
    if (!name.empty()) left += ", --" + name;
  }
  if (const std::string value = placeholder(option); !value.empty()) left += " " + value;

  std::string text = option.help;
  if (!option.words.empty() && placeholder(option) == "NAME")
    text += fmt::format("; one of {}", fmt::join(option.words, ", "));
  if (option.is_required) return entry(left, text + " (required)");
  const std::string value = value_text(option);
  if (option.is_flag || value.empty()) return entry(left, text);
  return entry(left, fmt::format("{} ({}{}{})", text, value, option.unit.empty() ? "" : " ", option.unit));
}

std::string further_name_of(const CommandSpec& spec, const std::string& key) {
  for (const auto& [name, long_key] : spec.short_names) {
    if (long_key == key) return name;
  }
  return {};
}

std::string keys_text(const CommandSpec& spec) {
  train::Config defaults;
  std::string text, section;
  for (Option& option : config_options(defaults)) {
    if (!is_used(spec, option.key)) continue;
    if (section != section_of(option.key)) {
      section = section_of(option.key);
      text += fmt::format("\n[{}]\n", section);
    }
    for (const Option& own : spec.options) {
      if (own.key == option.short_name) option.short_name.clear();
    }
    text += option_entry(option, further_name_of(spec, option.key));
  }
  return text;
}

}  // namespace

std::string help_text(const CommandSpec& spec) {
  std::string text =
      fmt::format("{}.\n\nusage: cartan {} {}\n\nexamples:\n", spec.sentence, spec.name, spec.usage);
  for (const std::string& example : spec.examples) text += "  " + example + "\n";
  text += "\noptions (in brackets: what holds if nothing is said)\n";
  for (const Option& option : spec.options) text += option_entry(option, "");
  text += entry("--config FILE", "read an INI file; may be given several times, later ones win");
  if (spec.translates)
    text += entry("--from FILE",
                  "configuration of another trainer, below all files: DeepSpeed's ds_config.json, JSON with "
                  "Megatron-LM's arguments, or a cluster's YAML");
  text += entry("--help", "show this text");
  const std::string keys = keys_text(spec);
  if (!keys.empty())
    text +=
        "\nkeys: --section.name VALUE here, name = value under [section] in a file; the command line wins\n" +
        keys;
  text += "\nexit codes:\n";
  for (const ExitCode code : spec.exit_codes)
    text += fmt::format("  {:<4}{}\n", static_cast<int>(code), exit_code_text(code));
  return text;
}

std::string overview_text(std::span<const CommandEntry> commands) {
  std::string text =
      "cartan trains language models on supercomputers.\n\nusage: cartan COMMAND [OPTION]...\n\ncommands:\n";
  for (const CommandEntry& command : commands)
    text += fmt::format("  {:<10}{}\n", command.name, command.make()->spec().sentence);
  return text +
         "\n  cartan COMMAND --help   what a command takes\n"
         "  cartan --version        this build and its libraries\n";
}

}  // namespace cartan::cli
