#include "cartan/data/token_cache.hpp"

#include <system_error>

#include "cartan/core/clock.hpp"
#include "cartan/core/error.hpp"
#include "cartan/core/file.hpp"
#include "cartan/core/hash.hpp"
#include "cartan/core/log.hpp"
#include "cartan/core/text.hpp"
#include "cartan/data/tokenize.hpp"
#include "cartan/data/tokenizer.hpp"

namespace cartan::data {
namespace {

namespace fs = std::filesystem;

/// Changes when the same source gets other tokens.
constexpr std::uint64_t kCacheVersion = 1;

std::uint64_t hash_file(const fs::path& path, std::uint64_t seed) {
  return hash_bytes(MappedFile(path).bytes(), seed);
}

std::uint64_t key_of(const std::string& source, const DataConfig& config) {
  std::uint64_t hash = hash_file(source, kCacheVersion);
  for (const std::string& text : {config.chat_template, config.json_key}) hash = hash_text(text, hash);
  if (!names_tokenizer_file(config.tokenizer)) return hash_text(config.tokenizer, hash);
  std::error_code ignored;
  fs::path file = config.tokenizer, folder = file;
  if (fs::is_directory(folder, ignored))
    file /= "tokenizer.json";
  else
    folder = folder.parent_path();
  hash = hash_file(file, hash);
  for (const char* name :
       {"tokenizer_config.json", "chat_template.jinja", "generation_config.json", "config.json"})
    if (fs::is_regular_file(folder / name, ignored)) hash = hash_file(folder / name, hash_text(name, hash));
  return hash;
}

}  // namespace

std::string cached_tokens(const std::string& source, const DataConfig& config, const fs::path& folder,
                          int threads) {
  const auto tokenizer = make_tokenizer(config.tokenizer);  // whose faults come before a missing file's
  std::string prefix =
      (folder / fmt::format("{}-{:016x}", fs::path(source).stem().string(), key_of(source, config))).string();
  std::error_code error;
  if (fs::exists(prefix + ".idx", error)) {
    log::info("data", "{}: token files {} were made of it before", source, prefix);
    return prefix;
  }
  fs::create_directories(folder, error);
  if (error) throw IoError("cannot create {}: {}", folder.string(), error.message());
  const auto begin = Clock::now();
  log::info("data", "{}: making token files {} ({} thread{})", source, prefix, threads,
            threads == 1 ? "" : "s");
  TokenizeOptions options;
  options.json_key = config.json_key;
  options.chat_template = config.chat_template;
  options.tokenizer_spec = config.tokenizer;
  options.threads = threads;
  const TokenizeCounts counts = tokenize_files({&source, 1}, prefix, *tokenizer, options);
  log::info("data", "{}: {} documents, {} tokens in {}", source, counts.documents, counts.tokens,
            format_duration(seconds_since(begin)));
  return prefix;
}

}  // namespace cartan::data
