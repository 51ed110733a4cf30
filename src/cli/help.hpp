// The texts of `cartan --help` and `cartan COMMAND --help`, made from the option tables.
#pragma once

#include <span>
#include <string>

#include "cli/command.hpp"
#include "cli/options.hpp"

namespace cartan::cli {

/// Sentence, usage, examples, options by section with default and unit, exit codes.
std::string help_text(const CommandSpec& spec);
/// What `cartan --help` prints: the commands, one line each.
std::string overview_text(std::span<const CommandEntry> commands);

}  // namespace cartan::cli
