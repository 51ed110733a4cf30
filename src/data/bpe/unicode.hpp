// Code points, their properties as tokenizers ask for them, and the four normalization forms.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cartan::data::bpe {

struct CodePoint {
  char32_t value;
  std::size_t length;  ///< bytes
};
/// The character at `at`; the text must be valid UTF-8 and longer.
CodePoint code_point(std::string_view text, std::size_t at);
void append_utf8(std::string& text, char32_t code);

/// White_Space: U+0085 and U+2028 are, U+180E, U+200B and U+001C ... U+001F are not.
bool is_white_space(char32_t code);
/// General categories N*, L*, M*, P* (and ASCII's other signs, as $ and +).
bool is_numeric(char32_t code);
bool is_letter(char32_t code);
bool is_mark(char32_t code);
bool is_punctuation(char32_t code);
/// What a regular expression's \w matches.
bool is_word(char32_t code);
/// Full lower case without context: U+0130 becomes two characters.
void append_lower_case(std::string& text, char32_t code);

/// NFC, NFD, NFKC or NFKD. Linear in the text, apart from sorting runs of combining marks.
class NormalForm {
 public:
  NormalForm(bool compatibility, bool compose);
  /// `text` must be valid UTF-8.
  void apply(std::string& text) const;
  /// True where it is known at once that apply() changes nothing.
  bool keeps(std::string_view text) const;

 private:
  bool is_inert(char32_t code) const { return (inert_[code / 64] >> (code % 64) & 1) != 0; }
  /// The first character from `from` on that is not inert; `anchor` becomes the place of the one before it.
  std::size_t find_work(std::string_view text, std::size_t from, std::size_t& anchor) const;
  void append_normal(std::string_view span, std::string& out) const;
  void normalize(std::vector<std::int32_t>& codes) const;

  int options_;
  bool compose_;
  /// One bit a code point: it is its own normal form and changes with no neighbour, so that text can be cut
  /// before it.
  std::vector<std::uint64_t> inert_;
};

}  // namespace cartan::data::bpe
