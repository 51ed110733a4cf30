// {"String": ...} or {"Regex": ...}: what Split and Replace look for.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "json_field.hpp"
#include "regex.hpp"

namespace cartan::data::bpe {

class Pattern {
 public:
  static Pattern literal(std::string text) { return Pattern(std::move(text)); }
  static Pattern regex(std::string_view pattern) { return Pattern(Regex(pattern)); }
  /// Throws DataError.
  static Pattern read(const JsonField& field);

  std::optional<Match> find(std::string_view text, std::size_t from) const;
  /// The literal, or nothing for a regular expression.
  const std::optional<std::string>& text() const { return text_; }
  /// `text` with every match replaced. Matches of no characters are passed over.
  std::string replace(std::string_view text, std::string_view content) const;

 private:
  explicit Pattern(std::string text) : text_(std::move(text)) {}
  explicit Pattern(Regex regex) : regex_(std::move(regex)) {}
  std::optional<std::string> text_;
  std::optional<Regex> regex_;
};

}  // namespace cartan::data::bpe
