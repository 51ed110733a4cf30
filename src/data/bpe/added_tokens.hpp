// Added and special tokens: contents that are found in the text itself and have an id each, before anything
// else is done to the text (or, `normalized`, after normalization).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "json_field.hpp"
#include "normalizer.hpp"
#include "vocabulary.hpp"

namespace cartan::data::bpe {

struct AddedToken {
  std::int32_t id = kNoToken;
  std::string content;
  bool special = false;                 ///< left out of decoded text on demand
  bool normalized = false;              ///< looked for in normalized text, by its normalized content
  bool single_word = false;             ///< not inside a word
  bool lstrip = false, rstrip = false;  ///< takes the white space beside it along
};

/// The member "added_tokens". Throws DataError for ids and contents that contradict each other or
/// `vocabulary`.
std::vector<AddedToken> read_added_tokens(const JsonField& field, const Vocabulary& vocabulary);

/// Where the white space that ends at `at` begins, but not before `least`; where that which begins there
/// ends.
std::size_t white_space_begin(std::string_view text, std::size_t at, std::size_t least);
std::size_t white_space_end(std::string_view text, std::size_t at);

/// Finds a set of tokens in a text: the leftmost first, of those the longest. Immutable.
class TokenFinder {
 public:
  /// A part of a text: a token, or (kNoToken) what lies between tokens. Never empty, but for tokens.
  struct Part {
    std::string_view text;
    std::int32_t id;
  };

  /// `tokens` and the contents to look for.
  explicit TokenFinder(const std::vector<std::pair<AddedToken, std::string>>& tokens = {});
  bool empty() const { return tokens_.empty(); }
  /// Calls `visit` with each part of a text in order.
  template <class Visit>
  void for_each_part(std::string_view text, Visit visit) const {
    std::size_t done = 0, from = 0;
    while (from < text.size()) {
      const Hit hit = find(text, from, done);
      if (hit.id == kNoToken) break;
      if (hit.begin > done) visit(Part{text.substr(done, hit.begin - done), kNoToken});
      visit(Part{text.substr(hit.begin, hit.end - hit.begin), hit.id});
      done = hit.end;
      from = hit.next;
    }
    if (done < text.size()) visit(Part{text.substr(done), kNoToken});
  }
  /// Whether a token ends at the end of `text`.
  bool ends_with_token(std::string_view text) const;

 private:
  struct Hit {
    std::size_t begin = 0, end = 0;  ///< with the white space that belongs to it
    std::size_t next = 0;            ///< where to go on looking
    std::int32_t id = kNoToken;
  };
  struct Node {
    std::vector<std::pair<unsigned char, std::uint32_t>> children;  ///< sorted by byte
    std::int32_t token = -1;                                        ///< index in tokens_
  };
  Hit find(std::string_view text, std::size_t from, std::size_t done) const;

  std::vector<AddedToken> tokens_;
  std::vector<std::string> contents_;
  std::vector<Node> nodes_;
  std::array<bool, 256> begins_{};  ///< bytes with which a content begins
  int single_begin_ = -1;           ///< the byte, where it is one for all of them
};

}  // namespace cartan::data::bpe
