// JSON lines that are samples of instruction data, one each:
//   {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}, ...]}
//   {"prompt": "...", "completion": "..."}
//   {"input_ids": [...], "labels": [...]}      labels may be missing: every id counts
// Other members are passed over.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cartan/core/json_fwd.hpp"
#include "cartan/core/types.hpp"
#include "cartan/data/chat_template.hpp"
#include "cartan/data/tokenizer.hpp"

namespace cartan::data {

/// Whether this line, the first of a file, makes the file one of samples: it has the members of a form, and
/// no text under `json_key`. False for what is no JSON object.
bool is_sample_line(std::string_view line, std::string_view json_key);

/// The object in a JSON line. Throws DataError that says `expected`.
Json parse_object_line(std::string_view line, std::string_view expected, const std::string& path,
                       Index number);

/// Ids, and for each of them whether the model learns to say it.
struct CountedIds {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> counted;
};

/// Immutable but for the template, which is found when the first chat comes; may be called by several
/// threads.
class SampleEncoder {
 public:
  /// Keeps references. `template_name`, `tokenizer_spec`: the keys data.template and data.tokenizer.
  SampleEncoder(const Tokenizer& tokenizer, std::string template_name, std::string tokenizer_spec);

  /// Appends one sample.
  ///   chat        see ChatEncoder
  ///   completion  the tokenizer's tokens before a text, prompt and completion as one text, and its end of a
  ///               text, as cartan tokenize makes documents; what counts is the completion and the end. A
  ///               token that holds the end of the prompt and the beginning of the completion counts
  ///   ids         as they are; those count whose label is not -100, which then must be the id itself
  /// Throws DataError with file and line, ConfigError for the template.
  void append(std::string_view line, const std::string& path, Index number, CountedIds& out) const;

  /// A sample of ready ids; without labels every id counts. Throws DataError that begins with `where`.
  void append_ready(std::span<const std::int64_t> ids, std::optional<std::span<const std::int64_t>> labels,
                    std::string_view where, CountedIds& out) const;

 private:
  const ChatEncoder& chat_encoder() const;
  void append_chat(const Json& messages, std::string_view where, CountedIds& out) const;
  void append_completion(const std::string& prompt, const std::string& completion, CountedIds& out) const;

  const Tokenizer& tokenizer_;
  std::string template_name_, tokenizer_spec_;
  std::vector<std::int32_t> before_, after_;
  mutable std::once_flag chat_once_;
  mutable std::optional<ChatEncoder> chat_;
};

}  // namespace cartan::data
