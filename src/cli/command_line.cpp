#include "cli/command_line.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <map>
#include <optional>

#include "cartan/core/text.hpp"
#include "cli/option_tables.hpp"

namespace cartan::cli {
namespace {

namespace po = boost::program_options;
using Texts = std::vector<std::string>;

/// Every name that the command knows, and the option it means.
class Names {
 public:
  Names(const CommandSpec& spec, std::span<const Option> config_options) {
    for (const Option& option : spec.options) add(option.key, option);
    for (const Option& option : config_options) {
      if (!is_used(spec, option.key)) continue;
      add(option.key, option);
      // A command's own option hides the short name of a key.
      if (!option.short_name.empty() && !options_.contains(option.short_name)) add(option.short_name, option);
      for (const auto& [name, key] : spec.short_names) {
        if (key == option.key) add(name, option);
      }
    }
    description_.add_options()("config", po::value<Texts>());
    if (spec.translates) description_.add_options()("from", po::value<std::string>());
  }

  const po::options_description& description() const { return description_; }
  const Option* find(const std::string& name) const {
    const auto found = options_.find(name);
    return found == options_.end() ? nullptr : found->second;
  }
  Texts all() const {
    Texts names{"config", "help"};
    if (description_.find_nothrow("from", false) != nullptr) names.emplace_back("from");
    for (const auto& [name, option] : options_) names.push_back(name);
    return names;
  }

 private:
  void add(const std::string& name, const Option& option) {
    options_[name] = &option;
    if (option.is_flag)
      description_.add_options()(name.c_str(), po::bool_switch());
    else if (is_list(option))
      description_.add_options()(name.c_str(), po::value<Texts>()->multitoken());
    else
      description_.add_options()(name.c_str(), po::value<std::string>());
  }

  po::options_description description_;
  std::map<std::string, const Option*> options_;
};

std::vector<po::option> take_apart(const Names& names, std::span<const std::string> words) {
  using namespace po::command_line_style;
  // Neither guessed abbreviations nor short options: "-1" is a value.
  const int style = allow_long | long_allow_adjacent | long_allow_next;
  try {
    return po::command_line_parser(Texts(words.begin(), words.end()))
        .options(names.description())
        .style(style)
        .allow_unregistered()
        .run()
        .options;
  } catch (const po::invalid_command_line_syntax& error) {
    if (error.kind() == po::invalid_syntax::extra_parameter)
      throw UsageError("{} takes no value", error.get_option_name());
    throw UsageError("{} needs a value", error.get_option_name());
  } catch (const po::error& error) {
    throw UsageError(std::string(error.what()));
  }
}

/// "--steps --seq 4": Boost takes "--seq" as the value of --steps.
bool swallowed_option(const po::option& option) {
  return option.original_tokens.size() > 1 && !option.value.empty() && option.value.front().starts_with("--");
}

void report_unknown(const CommandSpec& spec, const Names& names, std::span<const Option> config_options,
                    const std::string& name, Problems& usage, Problems& refused) {
  const auto later = spec.later_options.find(name);
  const auto is_name = [&](const Option& option) { return option.key == name || option.short_name == name; };
  if (later != spec.later_options.end()) {
    refused.add("--{}: this version of cartan has no {}", name, later->second);
  } else if (const auto reason = later_key(name)) {
    refused.add("--{}: {}", printable(name), *reason);
  } else if (std::any_of(config_options.begin(), config_options.end(), is_name)) {
    usage.add("cartan {} does not use --{}", spec.name, name);
  } else {
    const auto near = nearest(std::string_view(name).substr(0, 64), names.all());
    usage.add("unknown {} {}{}", section_of(name).empty() ? "option" : "key", printable("--" + name),
              near ? fmt::format(" (did you mean --{}?)", *near) : std::string());
  }
}

void take_word(const CommandSpec& spec, const std::string& word, CommandLine& line, Problems& usage) {
  if (!spec.words_name.empty()) {
    line.words.push_back(word);
  } else if (word.ends_with(".ini")) {
    usage.add("unexpected word '{}': a configuration file is given as --config {}", printable(word),
              printable(word));
  } else {
    usage.add("unexpected word '{}': values follow their option, as in --run.steps 100", printable(word));
  }
}

/// A list that is given again goes on; other options are set anew, and the last one wins.
void take_value(const Option& option, const Texts& texts, CommandLine& line) {
  const std::string text = option.is_flag ? "true" : fmt::format("{}", fmt::join(texts, " "));
  const auto same = std::find_if(line.values.begin(), line.values.end(),
                                 [&](const auto& value) { return value.first == option.key; });
  if (same == line.values.end() || option.is_repeated)
    line.values.emplace_back(option.key, text);
  else
    same->second = is_list(option) ? same->second + " " + text : text;
}

}  // namespace

bool is_used(const CommandSpec& spec, std::string_view key) {
  return std::any_of(spec.uses.begin(), spec.uses.end(),
                     [&](const std::string& use) { return use == key || use == section_of(key); });
}

CommandLine read_command_line(const CommandSpec& spec, std::span<const Option> config_options,
                              std::span<const std::string> words, Problems& usage, Problems& refused) {
  const Names names(spec, config_options);
  CommandLine line;
  bool is_after_fault = false;  // the words there belong to an option that is reported already
  for (const po::option& option : take_apart(names, words)) {
    if (option.position_key >= 0) {
      if (!is_after_fault)
        for (const std::string& word : option.value) take_word(spec, word, line, usage);
      continue;
    }
    const Option* known = names.find(option.string_key);
    is_after_fault = option.unregistered || swallowed_option(option);
    if (option.unregistered)
      report_unknown(spec, names, config_options, option.string_key, usage, refused);
    else if (is_after_fault)
      usage.add("--{0} needs a value (one that begins with -- is given as --{0}=VALUE)", option.string_key);
    else if (known)
      take_value(*known, option.value, line);
    else if (option.string_key == "from")
      line.foreign_file = option.value.front();
    else
      line.config_files.insert(line.config_files.end(), option.value.begin(), option.value.end());
  }
  return line;
}

}  // namespace cartan::cli
