// Models that end turns and texts differently have several end tokens.
#include <limits>

#include "cartan/core/json.hpp"
#include "cartan/store/model_config_file.hpp"

namespace cartan::store {

std::vector<std::int32_t> read_end_tokens(const std::filesystem::path& folder) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    const std::filesystem::path path = folder / name;
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(path, ignored)) continue;
    const Json json = read_json(path);
    if (!json.is_object() || !json.contains("eos_token_id") || json["eos_token_id"].is_null()) continue;
    const Json& value = json["eos_token_id"];
    std::vector<std::int32_t> ids;
    for (const Json& id : value.is_array() ? value : Json::array({value})) {
      if (!id.is_number_unsigned() || id.get<std::uint64_t>() > std::numeric_limits<std::int32_t>::max())
        throw DataError("{}: eos_token_id = {}: expected a token id, or a list of them", path.string(),
                        value.dump());
      ids.push_back(id.get<std::int32_t>());
    }
    if (!ids.empty()) return ids;
  }
  return {};
}

}  // namespace cartan::store
