// The words of a command line, taken apart by Boost.Program_options. What the values mean is not looked at.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cartan/core/error.hpp"
#include "cli/options.hpp"

namespace cartan::cli {

struct CommandLine {
  std::vector<std::pair<std::string, std::string>> values;  ///< full keys and texts; a list is one text
  std::vector<std::string> words;                           ///< those without a key
  std::vector<std::string> config_files;
  std::optional<std::string> foreign_file;  ///< --from of a command that translates
};

/// `config_options`: every key there is; the command uses some of them. Wrong words are added to `usage`,
/// keys of later versions to `refused`.
CommandLine read_command_line(const CommandSpec& spec, std::span<const Option> config_options,
                              std::span<const std::string> words, Problems& usage, Problems& refused);

/// Whether the command reads this key: its section or the key itself is in spec.uses.
bool is_used(const CommandSpec& spec, std::string_view key);

}  // namespace cartan::cli
