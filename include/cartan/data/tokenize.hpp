// Text files, folders, JSON lines and Parquet files to a token file: what `cartan tokenize` does.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "cartan/core/types.hpp"
#include "cartan/data/tokenizer.hpp"

namespace cartan::data {

struct TokenizeCounts {
  Index documents = 0;
  Index tokens = 0;        ///< end-of-document ids included
  bool has_mask = false;   ///< the documents are samples of instruction data
  Index counted = 0;       ///< of those: tokens that count in the loss as targets
  Index files = 0;         ///< files that were read
  Index binary_files = 0;  ///< skipped: they contain a zero byte
  Index empty_texts = 0;   ///< skipped: files or JSON lines without text
  Index bytes = 0;         ///< input bytes read so far
  Index total_bytes = 0;   ///< input bytes in all
};

struct TokenizeOptions {
  std::string json_key = "text";        ///< member of a JSON line, or Parquet column, that holds the text
  std::string chat_template = "auto";   ///< the key data.template
  std::string tokenizer_spec = "byte";  ///< the key data.tokenizer, for the template beside it
  bool append_end = true;               ///< end each document with the tokenizer's end_of_text()
  Index max_sequence = Index{1} << 30;  ///< longer documents become several sequences
  Index chunk_bytes = Index{1} << 20;   ///< text that a thread encodes at a time
  int threads = 1;                      ///< that encode; with one, the caller does everything
  /// Called after every file and every few MiB, on the calling thread.
  std::function<void(const TokenizeCounts&)> progress = nullptr;
};

/// Writes OUTPUT.bin and OUTPUT.idx: one document for each text file and each JSON line, in the order of
/// `inputs`; files of a folder are sorted by path, so the result depends on names and contents only.
///   folders       read recursively, regular files only; names that begin with a dot are passed over
///   *.jsonl       one JSON object a line; blank lines are passed over
///   *.json        the same; inside a folder only if the first line is an object with the key, else text
///   *.parquet     rows are documents; the column json_key of strings, else input_ids, lists of token ids
///   other files   text; one that contains a zero byte is skipped, with one warning for all of them
/// A document is what the tokenizer's template puts before a text, the text, what belongs after it, and the
/// tokenizer's end_of_text(). The result does not depend on the number of threads. Memory is bounded by a few
/// chunk_bytes for each thread, or the longest JSON line, and the index (12 bytes a document); a text without
/// any stable prefix (see Tokenizer) is held whole.
/// JSON lines whose first one is a sample of instruction data are all samples ({"messages": ...}, {"prompt",
/// "completion"}, {"input_ids", "labels"}), and so are rows with input_ids. Each is one document, and
/// OUTPUT.mask says which of its tokens count. Text and samples do not go into one output.
/// Throws MissingError, IoError, DataError (a bad JSON line, no text at all), ConfigError (a template that
/// does not fit the tokenizer); nothing is left behind then.
TokenizeCounts tokenize_files(std::span<const std::string> inputs, std::string_view output,
                              const Tokenizer& tokenizer, const TokenizeOptions& options = {});

/// What reads Parquet files, as "Apache Arrow 19.0.1"; empty: nothing does.
std::string parquet_library();

}  // namespace cartan::data
