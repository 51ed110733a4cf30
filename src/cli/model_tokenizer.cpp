#include "cli/model_tokenizer.hpp"

#include <algorithm>
#include <charconv>

#include "cartan/store/model_folder.hpp"
#include "cartan/train/config.hpp"
#include "cli/ini.hpp"

namespace cartan::cli {
namespace {

namespace fs = std::filesystem;

struct Names {
  std::string tokenizer, model_from, seq;
};

/// What the configuration of the run that wrote the checkpoint says.
Names names_of(const train::ModelSource& source) {
  const fs::path& path = source.path();
  if (store::is_model_folder(path)) return {"", path.string(), ""};
  if (store::is_adapter_folder(path))
    return {"", fs::exists(path / "tokenizer.json") ? path.string() : source.base_path(), ""};
  Names names;
  Problems ignored;  // what another version wrote may not be readable here
  for (const IniEntry& entry : parse_ini(source.configuration(), "config.ini", ignored)) {
    if (entry.key == "data.tokenizer") names.tokenizer = entry.value;
    if (entry.key == "model.from") names.model_from = entry.value;
    if (entry.key == "data.seq") names.seq = entry.value;
  }
  return names;
}

}  // namespace

std::string tokenizer_of(const train::ModelSource& source) {
  const auto [tokenizer, model_from, seq] = names_of(source);
  if (!tokenizer.empty() && tokenizer != "byte" && fs::exists(tokenizer)) return tokenizer;
  return !model_from.empty() && fs::exists(fs::path(model_from) / "tokenizer.json") ? model_from : "byte";
}

fs::path tokenizer_folder_of(const train::ModelSource& source) {
  const auto [tokenizer, model_from, seq] = names_of(source);
  const fs::path folder = train::tokenizer_folder(tokenizer, model_from);
  return fs::is_directory(folder) ? folder : fs::path();
}

Index length_of(const train::ModelSource& source) {
  constexpr Index kMost = 2048, kUnknown = 1024;
  if (source.config().max_length > 0) return std::min(kMost, source.config().max_length);
  const std::string seq = names_of(source).seq;
  Index length = 0;
  std::from_chars(seq.data(), seq.data() + seq.size(), length);
  return length > 0 ? length : kUnknown;
}

}  // namespace cartan::cli
