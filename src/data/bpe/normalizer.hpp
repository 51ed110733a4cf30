// The normalizer of tokenizer.json: steps that rewrite each stretch of text between added tokens.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "json_field.hpp"

namespace cartan::data::bpe {

/// One step, or several in order. Immutable.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  /// Rewrites valid UTF-8. `at_start` is false where the text goes on inside a stretch whose beginning was
  /// normalized before.
  virtual void apply(std::string& text, bool at_start) const = 0;
  /// What a space becomes. Nothing where a text that is cut before a space or a line feed, after a character
  /// that is no white space, or between a line feed and a letter, may give something else in two parts.
  virtual std::optional<std::string> space() const = 0;
  /// True where a quick look tells that the text stays as it is.
  virtual bool keeps(std::string_view) const { return false; }
};

/// Null gives null. Throws DataError for a type that is not known.
std::unique_ptr<Normalizer> read_normalizer(const std::optional<JsonField>& field, int depth = 0);

/// Sequences within sequences, at most.
inline constexpr int kDeepest = 8;

}  // namespace cartan::data::bpe
