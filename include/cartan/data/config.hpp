// The keys data.*, and how they become samplers.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cartan/core/error.hpp"
#include "cartan/core/types.hpp"
#include "cartan/data/sampler.hpp"

namespace cartan::data {

struct DataConfig {
  std::vector<std::string> train;  ///< prefixes or files, or pairs of a weight and one
  std::vector<std::string> valid;  ///< the same, for the validation loss
  double valid_fraction = 0;       ///< else: the last documents of each training corpus, [0, 1)
  std::string tokenizer = "byte";
  Index seq = 256;            ///< tokens in a sample
  std::uint64_t seed = 1234;  ///< of the order of samples
  bool shuffle = true;
  std::string json_key = "text";       ///< of JSON lines and Parquet files
  std::string chat_template = "auto";  ///< of chats in them
  std::string cache;                   ///< folder of token files that are made of them; empty: run.dir/data
  std::string raw_type = "none";       ///< of .bin files without index and header: u16 or u32
  Index raw_end = -1;                  ///< id that ends a document in a .bin file without index; -1: none
};

/// Adds every problem that can be seen without opening a file.
void check(const DataConfig& config, Problems& problems);

struct CorpusSpec {
  std::string prefix;
  std::uint64_t weight = 0;  ///< in 1e-9; 0: none was given
  friend bool operator==(const CorpusSpec&, const CorpusSpec&) = default;
};
/// Reads "a b" or "0.7 a 0.3 b"; words may be elements or lie in one element, separated by blanks. Weights
/// are from 1e-9 to 1e6, relative to each other. Throws ConfigError that begins with `key`.
std::vector<CorpusSpec> parse_corpora(std::span<const std::string> words, std::string_view key);

/// The keys data.raw-type and data.raw-end.
RawFormat raw_format_of(const DataConfig& config);

/// Whether a word of data.train is a file that has to be tokenized first: .jsonl, .json or .parquet.
bool is_text_source(std::string_view path);

/// The first document of the validation part: the boundary next to (1 - fraction) of the tokens that leaves
/// tokens on both sides. Throws ConfigError if there is none.
Index split_document(const IndexedDataset& dataset, double fraction);

struct DataSources {
  std::shared_ptr<const Sampler> train;
  std::shared_ptr<const Sampler> valid;  ///< null where none is configured
};
/// Opens the datasets of a checked configuration, in which no text sources are left. Not collective: every
/// rank opens them for itself. With valid_fraction, validation goes through all that is held out in
/// proportion to its size. Throws MissingError, IoError, DataError, ConfigError.
DataSources open_sources(const DataConfig& config, Index vocab_size);

}  // namespace cartan::data
