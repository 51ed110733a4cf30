// Files of token ids.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cartan::cli {

/// The lists of a JSON list of lists of token ids. Throws DataError that names `name` and the list that is
/// none.
std::vector<std::vector<std::int32_t>> parse_id_lists(std::string_view content, const std::string& name);

}  // namespace cartan::cli
