#include "added_tokens.hpp"

#include <algorithm>
#include <cstring>
#include <set>

#include "unicode.hpp"

namespace cartan::data::bpe {
namespace {

/// The character that ends before `at`.
char32_t character_before(std::string_view text, std::size_t at) {
  do --at;
  while ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  return code_point(text, at).value;
}

}  // namespace

std::size_t white_space_begin(std::string_view text, std::size_t at, std::size_t least) {
  while (at > least && is_white_space(character_before(text, at))) {
    do --at;
    while ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  }
  return at;
}

std::size_t white_space_end(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    const CodePoint code = code_point(text, at);
    if (!is_white_space(code.value)) break;
    at += code.length;
  }
  return at;
}

std::vector<AddedToken> read_added_tokens(const JsonField& list, const Vocabulary& vocabulary) {
  std::vector<AddedToken> tokens;
  std::set<std::string_view> contents;
  std::set<std::int32_t> ids;
  // A table of all ids must stay in proportion to the file.
  const auto largest = static_cast<std::int64_t>(2 * (vocabulary.ids() + list.size()) + 65536);
  tokens.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const JsonField field = list.at(i);
    field.allow({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token;
    token.id = static_cast<std::int32_t>(field.at("id").number(largest));
    token.content = field.at("content").text();
    token.special = field.flag_or("special", false);
    token.normalized = field.flag_or("normalized", !token.special);
    token.single_word = field.flag_or("single_word", false);
    token.lstrip = field.flag_or("lstrip", false);
    token.rstrip = field.flag_or("rstrip", false);
    if (token.content.empty()) field.at("content").refuse("expected at least one character");
    const std::int32_t known = vocabulary.find(token.content);
    if (known != kNoToken && known != token.id)
      field.refuse("the token {} has the id {} here, but {} in model.vocab", brief(token.content), token.id,
                   known);
    if (known == kNoToken && vocabulary.has(token.id))
      field.refuse("the id {} belongs to the token {} of model.vocab", token.id,
                   brief(vocabulary.content(token.id)));
    tokens.push_back(std::move(token));
    if (!ids.insert(tokens.back().id).second) field.refuse("the id {} is given twice", tokens.back().id);
    if (!contents.insert(tokens.back().content).second)
      field.refuse("the content {} is given twice", brief(tokens.back().content));
  }
  return tokens;
}

TokenFinder::TokenFinder(const std::vector<std::pair<AddedToken, std::string>>& tokens) : nodes_(1) {
  for (const auto& [token, content] : tokens) {
    if (content.empty()) continue;  // normalized away
    std::uint32_t node = 0;
    for (const char c : content) {
      const auto byte = static_cast<unsigned char>(c);
      auto& children = nodes_[node].children;
      const auto at = std::lower_bound(children.begin(), children.end(),
                                       std::pair<unsigned char, std::uint32_t>{byte, 0});
      if (at != children.end() && at->first == byte) {
        node = at->second;
      } else {
        const auto made = static_cast<std::uint32_t>(nodes_.size());
        children.insert(at, {byte, made});
        nodes_.emplace_back();
        node = made;
      }
    }
    nodes_[node].token = static_cast<std::int32_t>(tokens_.size());
    tokens_.push_back(token);
    contents_.push_back(content);
    begins_[static_cast<unsigned char>(content[0])] = true;
  }
  if (nodes_[0].children.size() == 1) single_begin_ = nodes_[0].children[0].first;
}

TokenFinder::Hit TokenFinder::find(std::string_view text, std::size_t from, std::size_t done) const {
  if (tokens_.empty()) return {};
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (single_begin_ >= 0) {
      const void* at = std::memchr(text.data() + begin, single_begin_, text.size() - begin);
      if (at == nullptr) return {};
      begin = static_cast<std::size_t>(static_cast<const char*>(at) - text.data());
    } else if (!begins_[static_cast<unsigned char>(text[begin])]) {
      continue;
    }
    std::uint32_t node = 0;
    std::int32_t longest = -1;
    for (std::size_t i = begin; i < text.size(); ++i) {
      const auto byte = static_cast<unsigned char>(text[i]);
      const auto& children = nodes_[node].children;
      const auto at = std::lower_bound(children.begin(), children.end(),
                                       std::pair<unsigned char, std::uint32_t>{byte, 0});
      if (at == children.end() || at->first != byte) break;
      node = at->second;
      if (nodes_[node].token >= 0) longest = nodes_[node].token;
    }
    if (longest < 0) continue;
    const AddedToken& token = tokens_[static_cast<std::size_t>(longest)];
    const std::size_t end = begin + contents_[static_cast<std::size_t>(longest)].size();
    const bool is_inside_word =
        token.single_word && ((begin > 0 && is_word(character_before(text, begin))) ||
                              (end < text.size() && is_word(code_point(text, end).value)));
    if (is_inside_word) {
      begin = end - 1;
      continue;
    }
    Hit hit{begin, end, end, token.id};
    if (token.lstrip) hit.begin = white_space_begin(text, begin, std::min(done, begin));
    if (token.rstrip) hit.end = white_space_end(text, end);
    // White space that was taken along can begin another token.
    return hit;
  }
  return {};
}

bool TokenFinder::ends_with_token(std::string_view text) const {
  return std::any_of(contents_.begin(), contents_.end(),
                     [&](const std::string& content) { return text.ends_with(content); });
}

}  // namespace cartan::data::bpe
