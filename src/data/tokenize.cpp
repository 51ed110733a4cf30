// Files in, pieces of text through the tokenizer, sequences and documents out, in the order of the input.
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
#include "ordered_workers.hpp"
#include "parquet.hpp"
#include "sample_lines.hpp"

namespace cartan::data {
namespace {

constexpr Index kProgressBytes = Index{4} << 20;

/// A part of the input, in order: what is encoded at a time, and what it means for the documents.
struct Batch {
  enum class Kind { text, json_lines, samples, rows } kind = Kind::text;
  std::string content = {};     ///< a piece of one document, or whole JSON lines
  ParquetRows rows = {};        ///< rows: of a Parquet file
  bool at_start = true;         ///< text: nothing of the document came before
  bool ends_document = false;   ///< text: nothing of it follows
  bool drops_document = false;  ///< text: the document turned out to be binary
  std::string path = {};        ///< of the file
  Index first_line = 0;         ///< json_lines, samples: number of the first one
  /// What came of it: the ids, of samples what counts, and where in them documents end.
  CountedIds result = {};
  std::vector<std::size_t> document_ends = {};
  Index empty_texts = 0;
};

/// The text of a JSON line. Throws DataError.
std::string text_of(std::string_view line, const std::string& key, const std::string& path, Index number) {
  const Json json = parse_object_line(line, fmt::format("as {{\"{}\": \"...\"}}", key), path, number);
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

/// Makes ids of batches; called by several threads.
class Encoder {
 public:
  Encoder(const Tokenizer& tokenizer, const TokenizeOptions& options)
      : tokenizer_(tokenizer),
        samples_(tokenizer, options.chat_template, options.tokenizer_spec),
        json_key_(options.json_key),
        after_(tokenizer.ids_after().begin(), tokenizer.ids_after().end()) {
    // A template may put the end there already.
    if (options.append_end && (after_.empty() || after_.back() != tokenizer.end_of_text()))
      after_.push_back(tokenizer.end_of_text());
  }

  void encode(Batch& batch) const {
    switch (batch.kind) {
      case Batch::Kind::text:
        if (!batch.content.empty()) add_text(batch.content, batch.at_start, batch.result.ids);
        if (batch.ends_document) end_document(batch, !(batch.at_start && batch.content.empty()));
        break;
      case Batch::Kind::json_lines:
        for_each_line(batch, [&](std::string_view line, Index number) {
          add_document(text_of(line, json_key_, batch.path, number), batch);
        });
        break;
      case Batch::Kind::samples:
        for_each_line(batch, [&](std::string_view line, Index number) {
          samples_.append(line, batch.path, number, batch.result);
          batch.document_ends.push_back(batch.result.ids.size());
        });
        break;
      case Batch::Kind::rows:
        add_rows(batch);
        break;
    }
    std::string().swap(batch.content);
    batch.rows = {};
  }

 private:
  template <class Visit>
  static void for_each_line(const Batch& batch, Visit visit) {
    std::size_t begin = 0;
    for (Index number = batch.first_line; begin < batch.content.size(); ++number) {
      const std::size_t end = std::min(batch.content.find('\n', begin), batch.content.size());
      const std::string_view line = std::string_view(batch.content).substr(begin, end - begin);
      begin = end + 1;
      if (!trim(line).empty()) visit(line, number);
    }
  }

  void add_rows(Batch& batch) const {
    const ParquetRows& rows = batch.rows;
    for (const std::string& text : rows.texts) add_document(text, batch);
    for (std::size_t i = 0; i < rows.ids.size(); ++i) {
      const auto labels =
          rows.has_labels ? std::optional(std::span<const std::int64_t>(rows.labels[i])) : std::nullopt;
      samples_.append_ready(rows.ids[i], labels,
                            fmt::format("{} row {}", batch.path, rows.first_row + static_cast<Index>(i)),
                            batch.result);
      batch.document_ends.push_back(batch.result.ids.size());
    }
  }

  void add_document(const std::string& text, Batch& batch) const {
    if (!text.empty()) add_text(text, true, batch.result.ids);
    end_document(batch, !text.empty());
  }

  void add_text(std::string_view text, bool at_start, std::vector<std::int32_t>& ids) const {
    if (at_start) ids.insert(ids.end(), tokenizer_.ids_before().begin(), tokenizer_.ids_before().end());
    tokenizer_.append_ids(text, at_start, ids);
  }

  void end_document(Batch& batch, bool has_text) const {
    if (!has_text) {
      ++batch.empty_texts;
      return;
    }
    batch.result.ids.insert(batch.result.ids.end(), after_.begin(), after_.end());
    batch.document_ends.push_back(batch.result.ids.size());
  }

  const Tokenizer& tokenizer_;
  const SampleEncoder samples_;
  const std::string& json_key_;
  std::vector<std::int32_t> after_;
};

/// Whether the inputs are samples of instruction data. Throws DataError where only some are.
bool hold_samples(const std::vector<InputFile>& files, const std::string& json_key) {
  const auto holds = [&](const InputFile& file) {
    return file.kind == InputFile::Kind::samples ||
           (file.kind == InputFile::Kind::parquet && ParquetFile(file.path, json_key).holds_ids());
  };
  const InputFile *samples = nullptr, *text = nullptr;
  for (const InputFile& file : files)
    if (file.bytes > 0) (holds(file) ? samples : text) = &file;
  if (samples != nullptr && text != nullptr)
    throw DataError(
        "{} holds samples (messages, prompt and completion, or input_ids), {} text: tokenize them apart, and "
        "give "
        "data.train both",
        samples->path, text->path);
  return samples != nullptr;
}

/// One run over all inputs: this thread reads and writes, workers encode.
class Job {
 public:
  Job(std::string_view output, const Tokenizer& tokenizer, const TokenizeOptions& options, bool has_mask)
      : tokenizer_(tokenizer),
        options_(options),
        encoder_(tokenizer, options),
        writer_(output, token_type_for(tokenizer.vocab_size()), has_mask),
        workers_(options.threads, static_cast<std::size_t>(options.threads) * 3,
                 [this](Batch& batch) { encoder_.encode(batch); }) {
    counts_.has_mask = has_mask;
  }

  TokenizeCounts run(const std::vector<InputFile>& files) {
    for (const InputFile& file : files) counts_.total_bytes += file.bytes;
    for (const InputFile& file : files) {
      switch (file.kind) {
        case InputFile::Kind::text:
          add_text(file.path);
          break;
        case InputFile::Kind::json_lines:
          add_json_lines(file.path, Batch::Kind::json_lines);
          break;
        case InputFile::Kind::samples:
          add_json_lines(file.path, Batch::Kind::samples);
          break;
        case InputFile::Kind::parquet:
          add_parquet(file);
          break;
      }
      ++counts_.files;
      report(true);
    }
    while (!workers_.empty()) write(workers_.take());
    report(true);
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
    std::string pending;          // text whose ids may depend on what follows
    std::size_t worth_while = 0;  // bytes of it that are worth looking for a stable prefix again
    Batch batch{.path = path};
    while (true) {
      const std::string_view chunk = reader.read(static_cast<std::size_t>(options_.chunk_bytes));
      advance(static_cast<Index>(chunk.size()));
      if (chunk.find('\0') != std::string_view::npos) {
        batch.drops_document = true;
        give(std::move(batch));
        return;
      }
      pending += chunk;
      batch.ends_document = chunk.empty();
      std::size_t ready = batch.ends_document ? pending.size() : 0;
      if (!batch.ends_document && pending.size() >= worth_while) ready = tokenizer_.stable_prefix(pending);
      if (ready == 0 && !batch.ends_document) {
        // The search looks through all of it, so it waits until that has doubled.
        if (pending.size() >= worth_while) worth_while = 2 * pending.size();
        continue;
      }
      worth_while = 0;
      batch.content = pending.substr(0, ready);
      pending.erase(0, ready);
      const bool ends = batch.ends_document;
      give(std::exchange(batch, Batch{.at_start = false, .path = path}));
      if (ends) return;
    }
  }

  void add_json_lines(const std::string& path, Batch::Kind kind) {
    FileReader reader(path);
    std::string_view line;
    Batch batch{.kind = kind, .path = path, .first_line = 1};
    for (Index number = 1; reader.read_line(line); ++number) {
      advance(static_cast<Index>(line.size()));
      batch.content += line;
      if (static_cast<Index>(batch.content.size()) < options_.chunk_bytes) continue;
      give(std::exchange(batch, Batch{.kind = kind, .path = path, .first_line = number + 1}));
    }
    if (!batch.content.empty()) give(std::move(batch));
  }

  void add_parquet(const InputFile& file) {
    ParquetFile parquet(file.path, options_.json_key);
    parquet.for_each_batch(options_.chunk_bytes, [&](ParquetRows&& rows) {
      give(Batch{.kind = Batch::Kind::rows, .rows = std::move(rows), .path = file.path});
    });
    advance(file.bytes);
  }

  /// Hands a batch to the workers, and writes what they have done.
  void give(Batch&& batch) {
    while (workers_.full()) write(workers_.take());
    workers_.give(std::move(batch));
    while (workers_.ready()) write(workers_.take());
  }

  void write(const Batch& batch) {
    if (batch.drops_document) {
      writer_.drop_document();
      sequence_tokens_ = 0;
      if (counts_.binary_files++ == 0) first_binary_ = batch.path;
      return;
    }
    counts_.empty_texts += batch.empty_texts;
    std::size_t written = 0;
    for (const std::size_t end : batch.document_ends) {
      add_ids(batch.result, written, end);
      written = end;
      writer_.end_document();
      sequence_tokens_ = 0;
    }
    add_ids(batch.result, written, batch.result.ids.size());
    counts_.documents = writer_.documents();
    counts_.tokens = writer_.tokens();
  }

  /// Adds ids [begin, end) to the open document, and cuts over-long sequences.
  void add_ids(const CountedIds& from, std::size_t begin, std::size_t end) {
    while (begin < end) {
      if (sequence_tokens_ == options_.max_sequence) {
        writer_.end_sequence();
        sequence_tokens_ = 0;
      }
      const auto count = static_cast<std::size_t>(
          std::min(options_.max_sequence - sequence_tokens_, static_cast<Index>(end - begin)));
      const auto ids = std::span(from.ids).subspan(begin, count);
      if (counts_.has_mask) {
        const auto counted = std::span(from.counted).subspan(begin, count);
        writer_.add_tokens(ids, counted);
        counts_.counted += std::count(counted.begin(), counted.end(), 1);
      } else {
        writer_.add_tokens(ids);
      }
      sequence_tokens_ += static_cast<Index>(count);
      begin += count;
    }
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
  const Encoder encoder_;
  IndexedDatasetWriter writer_;
  TokenizeCounts counts_;
  std::string first_binary_;
  Index sequence_tokens_ = 0;
  Index reported_bytes_ = 0;
  OrderedWorkers<Batch> workers_;  // last: they end before what they use
};

}  // namespace

TokenizeCounts tokenize_files(std::span<const std::string> inputs, std::string_view output,
                              const Tokenizer& tokenizer, const TokenizeOptions& options) {
  CARTAN_ASSERT(options.max_sequence > 0 && options.chunk_bytes > 0 && options.threads > 0);
  const std::vector<InputFile> files = list_inputs(inputs, options.json_key);
  return Job(output, tokenizer, options, hold_samples(files, options.json_key)).run(files);
}

}  // namespace cartan::data
