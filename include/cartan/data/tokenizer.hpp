// Text to token ids and back. Encoding and decoding both work in pieces, so that a file is rarely held whole
// and a generated token is shown as soon as it is a character.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cartan/core/types.hpp"

namespace cartan::data {

struct DecodeOptions {
  bool skip_special = false;  ///< leave special tokens out
  bool at_start = true;       ///< the first id is the first of a text (some tokenizers drop a blank there)
};

/// The ids of one text, one after another. What is returned are bytes, not always whole characters.
class TokenDecoder {
 public:
  virtual ~TokenDecoder() = default;
  /// What is known of the text with `id`. Throws DataError for an id outside the vocabulary.
  virtual std::string push(std::int32_t id) = 0;
  /// The rest.
  virtual std::string finish() = 0;
};

/// Immutable, so one object serves all threads. Ids are 0 ... vocab_size()-1.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// As in the key data.tokenizer.
  virtual std::string_view name() const = 0;
  virtual Index vocab_size() const = 0;
  /// The id that ends a document. Throws ConfigError if the tokenizer has none.
  virtual std::int32_t end_of_text() const = 0;
  /// Special tokens that belong before and after each text, by the tokenizer's template.
  virtual std::span<const std::int32_t> ids_before() const { return {}; }
  virtual std::span<const std::int32_t> ids_after() const { return {}; }
  /// The id of the token with exactly this content, as "<|im_end|>".
  virtual std::optional<std::int32_t> token_id(std::string_view content) const = 0;

  /// Appends the ids of `text`, without those before and after it, to `ids`. Bytes that are not UTF-8 count
  /// as U+FFFD, except for the tokenizer byte. `at_start`: nothing of this document came before (some
  /// tokenizers put a blank there); else `text` goes on where a stable prefix ended.
  virtual void append_ids(std::string_view text, bool at_start, std::vector<std::int32_t>& ids) const = 0;
  /// Length of a prefix of `text` known to have the same ids whatever follows; 0 if there is none. Encoding
  /// such prefixes one after another gives the ids of the whole document.
  virtual std::size_t stable_prefix(std::string_view text) const = 0;
  /// Appends the ids of the text that stands between two tokens of a template, or (none) at the start or the
  /// end of everything. Special tokens are ordinary text in it, whatever it spells. White space at a token
  /// that takes such along is left out, as append_ids() does. Both are ids of this tokenizer. Here:
  /// append_ids(), for tokenizers without special tokens.
  virtual void append_ids_between(std::string_view text, std::optional<std::int32_t> before,
                                  std::optional<std::int32_t> after, std::vector<std::int32_t>& ids) const;
  /// Keeps a reference to this object.
  virtual std::unique_ptr<TokenDecoder> decoder(const DecodeOptions& options) const = 0;

  /// The ids of a whole text, without any before, after or at its end.
  std::vector<std::int32_t> encode(std::string_view text) const;
  /// The same with ids_before() and ids_after().
  std::vector<std::int32_t> encode_with_special(std::string_view text) const;
  /// The bytes of all ids; see valid_utf8() for ids that a model wrote.
  std::string decode(std::span<const std::int32_t> ids, const DecodeOptions& options = {}) const;
};

/// Decodes ids as they come. The concatenation of all results is valid_utf8(decode(ids)).
class DecodeStream {
 public:
  /// Keeps a reference to `tokenizer`.
  explicit DecodeStream(const Tokenizer& tokenizer, const DecodeOptions& options = {})
      : tokenizer_(tokenizer), options_(options), decoder_(tokenizer.decoder(options)) {}
  /// The characters that are complete with `id`; may be empty.
  std::string push(std::int32_t id);
  /// What is left: U+FFFD if the last character was cut, else mostly nothing. The next id begins a new text.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  DecodeOptions options_;
  std::unique_ptr<TokenDecoder> decoder_;
  std::string pending_;
};

/// The tokenizer of the key data.tokenizer: `byte`, or a Hugging Face tokenizer: the path of its
/// tokenizer.json (any name that ends in .json), or of the folder that holds it. The token that ends a
/// document is the eos_token of tokenizer_config.json beside it, else the eos_token_id of
/// generation_config.json or config.json, else the first of </s>, <|end_of_text|>, <|endoftext|>, <|im_end|>,
/// <|eot_id|> that it has. Throws ConfigError, MissingError, IoError, and DataError with the file and the
/// place in it.
std::unique_ptr<Tokenizer> make_tokenizer(std::string_view spec);

/// Whether make_tokenizer(spec) opens files: `spec` is a folder, or ends in .json.
bool names_tokenizer_file(std::string_view spec);

/// make_tokenizer() of the text of a tokenizer.json; `file` is for messages. It has no files beside it.
std::unique_ptr<Tokenizer> parse_tokenizer(std::string_view json, std::string_view file);

}  // namespace cartan::data
