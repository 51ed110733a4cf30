#include "end_token.hpp"

#include <filesystem>

#include "cartan/core/file.hpp"
#include "json_field.hpp"

namespace cartan::data::bpe {
namespace {

namespace fs = std::filesystem;

/// The document in a file; nothing where there is none.
std::optional<SortedJson> read_beside(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return std::nullopt;
  try {
    return SortedJson::parse(read_file(path));
  } catch (const nlohmann::json::exception& error) {
    throw DataError("{}: not valid JSON: {}", path.string(), error.what());
  }
}

}  // namespace

std::optional<std::int32_t> find_end_token(
    std::string_view file, const std::function<std::optional<std::int32_t>(std::string_view)>& id_of,
    const std::function<std::optional<std::int32_t>(std::string_view)>& added_id_of,
    const std::function<bool(std::int32_t)>& is_token) {
  const fs::path folder = fs::path(file).parent_path();
  const std::string tokenizer_config = (folder / "tokenizer_config.json").string();
  if (const auto json = read_beside(tokenizer_config)) {
    if (auto token = JsonField(*json, tokenizer_config).find("eos_token")) {
      const JsonField content = token->is_object() ? token->at("content") : *token;
      const std::optional<std::int32_t> id = id_of(content.text());
      if (!id) content.refuse("{} is no token of {}", brief(content.text()), file);
      return id;
    }
  }
  for (const char* name : {"generation_config.json", "config.json"}) {
    const std::string path = (folder / name).string();
    const auto json = read_beside(path);
    if (!json) continue;
    const auto value = JsonField(*json, path).find("eos_token_id");
    if (!value) continue;
    // Models that end turns and texts differently have a list; the first is the text's.
    if (value->is_array() && value->size() == 0) continue;
    const JsonField field = value->is_array() ? value->at(std::size_t{0}) : *value;
    const auto id = static_cast<std::int32_t>(field.number(INT32_MAX));
    if (!is_token(id)) field.refuse("no token of {} has the id {}", file, id);
    return id;
  }
  for (const char* content : {"</s>", "<|end_of_text|>", "<|endoftext|>", "<|im_end|>", "<|eot_id|>"})
    if (const auto id = added_id_of(content)) return id;
  return std::nullopt;
}

}  // namespace cartan::data::bpe
