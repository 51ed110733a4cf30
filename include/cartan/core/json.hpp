// JSON by nlohmann-json; keys keep their order, numbers round-trip exactly.
#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>
#include <string_view>

#include "cartan/core/json_fwd.hpp"

namespace cartan {

/// Parses `text`. Throws DataError that names `where` (a path) and the line and column of the fault.
/// `may_have_comments`: // and /* */ are blanks.
Json parse_json(std::string_view text, std::string_view where, bool may_have_comments = false);
/// Reads and parses a file. Throws MissingError, IoError, DataError.
Json read_json(const std::filesystem::path& path);

}  // namespace cartan
