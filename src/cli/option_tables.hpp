// Every key of the configuration, one table a section, and the keys that are promised but not here yet.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cartan/train/config.hpp"
#include "cli/option.hpp"

namespace cartan::cli {

/// All options of a configuration, bound to `config`, section by section in the order in which they are
/// shown.
std::vector<Option> config_options(train::Config& config);

/// The sections that a training reads: those of all options.
std::vector<std::string> training_sections();

/// Why a key of later versions is refused: "this version of cartan has no context parallelism". Nothing for
/// other keys.
std::optional<std::string> later_key(std::string_view key);

/// "model" of "model.hidden"; empty for a command's own option.
std::string_view section_of(std::string_view key);

}  // namespace cartan::cli
