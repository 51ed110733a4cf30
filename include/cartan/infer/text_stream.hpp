// The text of a continuation, token by token: whole characters only, and nothing of a string that ends it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cartan/data/tokenizer.hpp"

namespace cartan::infer {

class TextStream {
 public:
  /// Keeps a reference to `tokenizer`. The text ends before the first of the strings `stops`, none of them
  /// empty, wherever the bounds of tokens are. End tokens are no part of it.
  TextStream(const data::Tokenizer& tokenizer, std::vector<std::int32_t> end_tokens,
             std::vector<std::string> stops);

  /// The next token. Whether the text goes on: false once it contains a string that ends it.
  bool push(std::int32_t token);
  /// No token follows: what was held back belongs to the text, U+FFFD for a character that was cut.
  void finish();

  /// What is certain of the text so far, valid UTF-8. Empty, and so it stays, after a token that the
  /// tokenizer does not know: then it is not the model's.
  const std::string& text() const { return text_; }

 private:
  void add(const std::string& characters);

  data::DecodeStream decoder_;
  std::vector<std::int32_t> end_tokens_;
  std::vector<std::string> stops_;
  std::string text_, held_;  ///< held: may be the beginning of a stop string
  bool is_over_ = false, is_readable_ = true;
};

}  // namespace cartan::infer
