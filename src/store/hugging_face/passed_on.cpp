#include "store/hugging_face/passed_on.hpp"

#include <algorithm>
#include <array>

#include "cartan/core/error.hpp"
#include "cartan/core/file.hpp"

namespace cartan::store {
namespace {

namespace fs = std::filesystem;

// What belongs to a tokenizer, and to generation.
constexpr std::array kPassedOn{"tokenizer.json",
                               "tokenizer_config.json",
                               "special_tokens_map.json",
                               "added_tokens.json",
                               "tokenizer.model",
                               "vocab.json",
                               "merges.txt",
                               "chat_template.jinja",
                               "chat_template.json",
                               "generation_config.json"};
}  // namespace

void check_export_folder(const fs::path& folder, bool overwrite) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error || !fs::is_directory(folder))
    throw IoError("cannot create {}: {}", folder.string(), error ? error.message() : "a file has this name");
  if (!overwrite && !fs::is_empty(folder))
    throw ConfigError("{} is not empty: name another folder, or delete what is in it", folder.string());
}

void remove_parameters(const fs::path& folder, const std::vector<std::string>& kept) {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const bool is_kept = std::find(kept.begin(), kept.end(), name) != kept.end();
    if (!is_kept && (name.ends_with(".safetensors") || name == "model.safetensors.index.json"))
      fs::remove(entry.path());
  }
}

void pass_on(const fs::path& from, const fs::path& folder) {
  if (from.empty()) return;
  for (const char* const name : kPassedOn)
    if (fs::exists(from / name)) write_file_atomically(folder / name, read_file(from / name));
}

}  // namespace cartan::store
