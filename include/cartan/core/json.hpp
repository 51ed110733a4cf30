// JSON by nlohmann-json; keys keep their order, numbers round-trip exactly.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cartan/core/json_fwd.hpp"

namespace cartan {

/// Parses `text`. Throws DataError that names `where` (a path) and the line and column of the fault.
/// `may_have_comments`: // and /* */ are blanks.
Json parse_json(std::string_view text, std::string_view where, bool may_have_comments = false);
/// Reads and parses a file. Throws MissingError, IoError, DataError.
Json read_json(const std::filesystem::path& path);
/// The elements of a list of whole numbers; nothing where `json` is no list, or an element is none (1.0 is
/// not) or does not fit. What nlohmann-json converts without a word is not even defined for large fractions.
std::optional<std::vector<std::int32_t>> integers_of(const Json& json);

}  // namespace cartan
