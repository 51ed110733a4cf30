#include "cli/id_lists.hpp"

#include "cartan/core/error.hpp"
#include "cartan/core/json.hpp"
#include "cli/option.hpp"

namespace cartan::cli {

std::vector<std::vector<std::int32_t>> parse_id_lists(std::string_view content, const std::string& name) {
  const auto refuse = [](const std::string& where, const Json& found) {
    throw DataError("{}: expected a JSON list of lists of token ids, found {}", where,
                    printable(found.dump()));
  };
  const Json json = parse_json(content, name);
  if (!json.is_array()) refuse(name, json);
  std::vector<std::vector<std::int32_t>> lists;
  for (const Json& list : json) {
    auto ids = integers_of(list);
    if (!ids) refuse(fmt::format("{}: list {}", name, lists.size()), list);
    lists.push_back(std::move(*ids));
  }
  return lists;
}

}  // namespace cartan::cli
