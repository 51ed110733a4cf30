// The configuration as the train room sees it, with messages that say where each value came from.
#include <fmt/format.h>

#include <algorithm>

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

void resolve(Parsed& parsed, int world_size) {
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
