// Configurations of others: a file of DeepSpeed, Megatron-LM or a cluster becomes settings of ours. The
// format is recognised by its keys, not by the file's name.
#pragma once

#include <string>
#include <string_view>

#include "cli/foreign/translation.hpp"

namespace cartan::cli::foreign {

/// Translates the text of the file `path`. What cannot be done is in Translation::refused. Throws DataError
/// for a text that is no JSON object and no YAML map, ConfigError where its format cannot be told.
Translation translate(std::string_view text, const std::string& path);

}  // namespace cartan::cli::foreign
