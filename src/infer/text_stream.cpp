#include "cartan/infer/text_stream.hpp"

#include <algorithm>
#include <utility>

#include "cartan/core/error.hpp"

namespace cartan::infer {
namespace {

/// Length of the longest end of `text` that one of the strings begins with.
std::size_t begun(const std::string& text, const std::vector<std::string>& strings) {
  std::size_t longest = 0;
  for (const std::string& string : strings)
    for (std::size_t length = std::min(string.size() - 1, text.size()); length > longest; --length)
      if (text.ends_with(std::string_view(string).substr(0, length))) longest = length;
  return longest;
}

}  // namespace

TextStream::TextStream(const data::Tokenizer& tokenizer, std::vector<std::int32_t> end_tokens,
                       std::vector<std::string> stops)
    : decoder_(tokenizer, {.at_start = false}), end_tokens_(std::move(end_tokens)), stops_(std::move(stops)) {
  for (const std::string& stop : stops_) CARTAN_ASSERT(!stop.empty());
}

bool TextStream::push(std::int32_t token) {
  const bool is_end = std::find(end_tokens_.begin(), end_tokens_.end(), token) != end_tokens_.end();
  if (is_over_ || is_end || !is_readable_) return !is_over_;
  try {
    add(decoder_.push(token));
  } catch (const DataError&) {
    is_readable_ = false;
    text_.clear();
  }
  return !is_over_;
}

void TextStream::finish() {
  if (is_over_ || !is_readable_) return;
  add(decoder_.finish());
  if (!is_over_) text_ += std::exchange(held_, {});
  is_over_ = true;
}

void TextStream::add(const std::string& characters) {
  held_ += characters;
  std::size_t first = std::string::npos;
  for (const std::string& stop : stops_) first = std::min(first, held_.find(stop));
  is_over_ = first != std::string::npos;
  const std::size_t certain = is_over_ ? first : held_.size() - begun(held_, stops_);
  text_ += held_.substr(0, certain);
  held_.erase(0, certain);
}

}  // namespace cartan::infer
