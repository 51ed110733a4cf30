// Files in, pieces of text through the tokenizer, sequences and documents out.
#include "cartan/data/tokenize.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "cartan/core/error.hpp"
#include "cartan/core/json.hpp"
#include "cartan/core/log.hpp"
#include "cartan/core/text.hpp"
#include "cartan/data/indexed_dataset_writer.hpp"
#include "input_files.hpp"

namespace cartan::data {
namespace {

constexpr Index kProgressBytes = Index{4} << 20;

/// One run over all inputs.
class Job {
 public:
  Job(std::string_view output, const Tokenizer& tokenizer, const TokenizeOptions& options)
      : tokenizer_(tokenizer), options_(options), writer_(output, token_type_for(tokenizer.vocab_size())) {}

  TokenizeCounts run(const std::vector<InputFile>& files) {
    for (const InputFile& file : files) counts_.total_bytes += file.bytes;
    for (const InputFile& file : files) {
      file.json_lines ? add_json_lines(file.path) : add_text(file.path);
      ++counts_.files;
      report(true);
    }
    if (counts_.binary_files > 0)
      log::warning("data", "skipped {} binary file{} (with a zero byte), first {}", counts_.binary_files,
                   counts_.binary_files == 1 ? "" : "s", first_binary_);
    if (writer_.documents() == 0)
      throw DataError("no text in the {} input file{} ({} binary, {} empty texts): nothing is written",
                      files.size(), files.size() == 1 ? "" : "s", counts_.binary_files, counts_.empty_texts);
    writer_.finish();
    return counts_;
  }

 private:
  void add_text(const std::string& path) {
    FileReader reader(path);
    std::string pending;  // text whose ids may depend on what follows
    bool at_start = true;
    while (true) {
      const std::string_view chunk = reader.read(static_cast<std::size_t>(options_.chunk_bytes));
      advance(static_cast<Index>(chunk.size()));
      if (chunk.find('\0') != std::string_view::npos) {
        writer_.drop_document();
        sequence_tokens_ = 0;
        if (counts_.binary_files++ == 0) first_binary_ = path;
        return;
      }
      pending += chunk;
      const std::size_t ready = chunk.empty() ? pending.size() : tokenizer_.stable_prefix(pending);
      if (ready > 0) add_piece(std::string_view(pending).substr(0, ready), std::exchange(at_start, false));
      pending.erase(0, ready);
      if (chunk.empty()) break;
    }
    end_document(!at_start);
  }

  void add_json_lines(const std::string& path) {
    FileReader reader(path);
    std::string_view line;
    for (Index number = 1; reader.read_line(line); ++number) {
      advance(static_cast<Index>(line.size()));
      if (trim(line).empty()) continue;
      const std::string text = text_of(line, path, number);
      if (!text.empty()) add_piece(text, true);
      end_document(!text.empty());
    }
  }

  std::string text_of(std::string_view line, const std::string& path, Index number) const {
    const std::string& key = options_.json_key;
    Json json;
    try {
      json = Json::parse(line);
    } catch (const nlohmann::json::parse_error& error) {
      throw DataError(
          "{} line {}: not valid JSON near column {}, expected one object a line, as {{\"{}\": \"...\"}}",
          path, number, error.byte, key);
    }
    if (!json.is_object())
      throw DataError("{} line {}: found a JSON {}, expected an object with the key \"{}\"", path, number,
                      json.type_name(), key);
    const auto member = json.find(key);
    if (member == json.end()) {
      std::vector<std::string> keys;
      for (const auto& [name, value] : json.items()) keys.push_back('"' + name + '"');
      throw DataError("{} line {}: no key \"{}\", found {}; choose one with --json-key", path, number, key,
                      keys.empty() ? "none" : fmt::format("{}", fmt::join(keys, ", ")));
    }
    if (!member->is_string())
      throw DataError("{} line {}: \"{}\" is a JSON {}, expected a string", path, number, key,
                      member->type_name());
    return member->get<std::string>();
  }

  /// Encodes a piece of the open document and cuts over-long sequences.
  void add_piece(std::string_view text, bool at_start) {
    ids_.clear();
    tokenizer_.append_ids(text, at_start, ids_);
    add_ids(ids_);
  }

  void add_ids(std::span<const std::int32_t> ids) {
    while (!ids.empty()) {
      if (sequence_tokens_ == options_.max_sequence) {
        writer_.end_sequence();
        sequence_tokens_ = 0;
      }
      const Index room = options_.max_sequence - sequence_tokens_;
      const auto now = ids.first(static_cast<std::size_t>(std::min(room, static_cast<Index>(ids.size()))));
      writer_.add_tokens(now);
      sequence_tokens_ += static_cast<Index>(now.size());
      ids = ids.subspan(now.size());
    }
  }

  void end_document(bool has_text) {
    if (!has_text) {
      ++counts_.empty_texts;
      return;
    }
    const std::int32_t end = tokenizer_.end_of_text();
    if (options_.append_end) add_ids({&end, 1});
    writer_.end_document();
    sequence_tokens_ = 0;
    counts_.documents = writer_.documents();
    counts_.tokens = writer_.tokens();
  }

  void advance(Index bytes) {
    counts_.bytes += bytes;
    report(false);
  }

  void report(bool now) {
    if (!options_.progress || (!now && counts_.bytes - reported_bytes_ < kProgressBytes)) return;
    reported_bytes_ = counts_.bytes;
    options_.progress(counts_);
  }

  const Tokenizer& tokenizer_;
  const TokenizeOptions& options_;
  IndexedDatasetWriter writer_;
  TokenizeCounts counts_;
  std::string first_binary_;
  std::vector<std::int32_t> ids_;
  Index sequence_tokens_ = 0;
  Index reported_bytes_ = 0;
};

}  // namespace

TokenizeCounts tokenize_files(std::span<const std::string> inputs, std::string_view output,
                              const Tokenizer& tokenizer, const TokenizeOptions& options) {
  CARTAN_ASSERT(options.max_sequence > 0 && options.chunk_bytes > 0);
  const std::vector<InputFile> files = list_inputs(inputs, options.json_key);
  return Job(output, tokenizer, options).run(files);
}

}  // namespace cartan::data
