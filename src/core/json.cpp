#include "cartan/core/json.hpp"

#include <algorithm>
#include <utility>

#include "cartan/core/error.hpp"
#include "cartan/core/file.hpp"

namespace cartan {

Json parse_json(std::string_view text, std::string_view where, bool may_have_comments) {
  try {
    return Json::parse(text, nullptr, true, may_have_comments);
  } catch (const nlohmann::json::parse_error& error) {
    const auto end = std::min(error.byte, text.size());
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(end), '\n');
    throw DataError("{}: not valid JSON near line {}: {}", where, line, error.what());
  } catch (const Json::exception& error) {  // numbers beyond all types
    throw DataError("{}: not valid JSON: {}", where, error.what());
  }
}

Json read_json(const std::filesystem::path& path) { return parse_json(read_file(path), path.string()); }

std::optional<std::vector<std::int32_t>> integers_of(const Json& json) {
  if (!json.is_array()) return std::nullopt;
  std::vector<std::int32_t> values;
  values.reserve(json.size());
  for (const Json& element : json) {
    const bool fits = element.is_number_unsigned() ? std::in_range<std::int32_t>(element.get<std::uint64_t>())
                      : element.is_number_integer() ? std::in_range<std::int32_t>(element.get<std::int64_t>())
                                                    : false;
    if (!fits) return std::nullopt;
    values.push_back(element.get<std::int32_t>());
  }
  return values;
}

}  // namespace cartan
