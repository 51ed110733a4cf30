// Token files that are made of text sources when they are first needed, and found again later by what they
// were made of.
#pragma once

#include <filesystem>
#include <string>

#include "cartan/data/config.hpp"

namespace cartan::data {

/// The prefix of token files with the content of `source` (a JSON lines or Parquet file), in `folder`, which
/// is created. Their name ends in a hash of the source, the tokenizer's files, data.template and
/// data.json-key; files of that name are taken as they are, else tokenize_files() makes them with `threads`
/// threads. Says in the log which it did. One process at a time and folder, or several that make the same.
/// Throws what tokenize_files() throws.
std::string cached_tokens(const std::string& source, const DataConfig& config,
                          const std::filesystem::path& folder, int threads);

}  // namespace cartan::data
