// Text to token ids and back. Encoding and decoding both work in pieces, so that a file is never held whole
// and a generated token is shown as soon as it is a character.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cartan/core/types.hpp"

namespace cartan::data {

/// Immutable, so one object serves all threads. Ids are 0 ... vocab_size()-1.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// As in the key data.tokenizer.
  virtual std::string_view name() const = 0;
  virtual Index vocab_size() const = 0;
  /// The id that ends a document.
  virtual std::int32_t end_of_text() const = 0;

  /// Appends the ids of `text` to `ids`. `at_start`: nothing of this document came before (some tokenizers
  /// put a blank there).
  virtual void append_ids(std::string_view text, bool at_start, std::vector<std::int32_t>& ids) const = 0;
  /// Length of the longest prefix of `text` known to have the same ids whatever follows; 0 if there is none.
  /// Encoding such prefixes one after another gives the ids of the whole document.
  virtual std::size_t stable_prefix(std::string_view text) const = 0;
  /// The bytes of one id, not always whole characters; empty for end_of_text(). `at_start`: it is the first
  /// id of a text. Throws DataError for an id outside the vocabulary.
  virtual std::string token_bytes(std::int32_t id, bool at_start) const = 0;

  /// The ids of a whole text, without an end-of-text id.
  std::vector<std::int32_t> encode(std::string_view text) const;
  /// The bytes of all ids. Inverse of encode(); see valid_utf8() for ids that a model wrote.
  std::string decode(std::span<const std::int32_t> ids) const;
};

/// Decodes ids as they come. The concatenation of all results is valid_utf8(decode(ids)).
class DecodeStream {
 public:
  /// Keeps a reference to `tokenizer`.
  explicit DecodeStream(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  /// The characters that are complete with `id`; may be empty.
  std::string push(std::int32_t id);
  /// What is left: U+FFFD if the last character was cut, else nothing.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  std::string pending_;
  bool at_start_ = true;
};

/// The tokenizer of the key data.tokenizer: `byte`. Throws ConfigError for any other.
std::unique_ptr<Tokenizer> make_tokenizer(std::string_view spec);

}  // namespace cartan::data
