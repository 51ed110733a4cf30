#include "bpe_model.hpp"

#include <algorithm>
#include <atomic>

#include "byte_level.hpp"
#include "piece_cache.hpp"
#include "unicode.hpp"

namespace cartan::data::bpe {
namespace {

/// Ids may have gaps, but a table of all of them must stay in proportion to the file.
std::int64_t largest_id(std::size_t tokens) { return static_cast<std::int64_t>(2 * tokens + 65536); }

}  // namespace

BpeModel::BpeModel(const JsonField& field, bool is_byte_level) : is_byte_level_(is_byte_level) {
  static std::atomic<std::uint64_t> next_serial{1};
  serial_ = next_serial++;
  // Files of the first versions have no type.
  if (const auto type = field.find("type"); type && type->text() != "BPE")
    type->refuse("the model {} is not supported; supported is BPE", type->text());
  field.allow({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
               "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (const auto dropout = field.find("dropout");
      dropout && !(dropout->value().is_number() && dropout->value() == 0))
    dropout->refuse("dropout is not supported: token ids would be random; set it to null");
  for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (const auto affix = field.find(key); affix && !affix->text().empty())
      affix->refuse("\"{}\": affixes of subwords are not supported", affix->text());
  fuse_unk_ = field.flag_or("fuse_unk", false);
  byte_fallback_ = field.flag_or("byte_fallback", false);
  ignore_merges_ = field.flag_or("ignore_merges", false);
  read_vocabulary(field.at("vocab"));
  if (const auto unk = field.find("unk_token")) {
    unk_ = vocabulary_.find(unk->text());
    if (unk_ == kNoToken) unk->refuse("\"{}\" is not in the vocabulary", unk->text());
  }
  read_merges(field.at("merges"));
  for (int code = 0; code < (is_byte_level ? 256 : 128); ++code) {
    const auto byte = static_cast<unsigned char>(code);
    single_[byte] =
        symbol(is_byte_level ? byte_level_character(byte) : std::string(1, static_cast<char>(byte)));
  }
}

void BpeModel::read_vocabulary(const JsonField& field) {
  if (!field.is_object()) field.refuse("expected an object of tokens and ids");
  const std::int64_t largest = largest_id(field.value().size());
  std::int64_t ids = 0;
  for (const auto& [content, value] : field.value().items()) {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > static_cast<std::uint64_t>(largest))
      field.refuse("token {}: expected an id from 0 to {} (there are {} tokens), found {}", brief(content),
                   largest, field.value().size(), brief(value));
    ids = std::max(ids, value.get<std::int64_t>() + 1);
  }
  vocabulary_ = Vocabulary(static_cast<std::size_t>(ids));
  if (ignore_merges_) whole_pieces_ = Vocabulary(static_cast<std::size_t>(ids));
  for (const auto& [content, value] : field.value().items()) {
    const auto id = value.get<std::int32_t>();
    if (vocabulary_.has(id))
      field.refuse("tokens {} and {} have the same id {}", brief(vocabulary_.content(id)), brief(content),
                   id);
    vocabulary_.add(content, id);
    if (!ignore_merges_) continue;
    if (!is_byte_level_)
      whole_pieces_.add(content, id);
    else if (const auto bytes = byte_level_bytes(content))
      whole_pieces_.add(*bytes, id);
  }
}

void BpeModel::read_merges(const JsonField& field) {
  const std::size_t count = field.size();
  merges_ = MergeTable(count);
  std::string whole;
  for (std::size_t rank = 0; rank < count; ++rank) {
    const SortedJson& value = field.value()[rank];
    std::string_view left, right;
    if (value.is_string()) {  // "left right"
      const std::string_view both = value.get_ref<const std::string&>();
      const std::size_t blank = both.find(' ');
      if (blank == std::string_view::npos || both.find(' ', blank + 1) != std::string_view::npos)
        field.at(rank).refuse("expected two tokens with one space between them, found {}", brief(value));
      left = both.substr(0, blank);
      right = both.substr(blank + 1);
    } else if (value.is_array() && value.size() == 2 && value[0].is_string() && value[1].is_string()) {
      left = value[0].get_ref<const std::string&>();
      right = value[1].get_ref<const std::string&>();
    } else {
      field.at(rank).refuse("expected two tokens, found {}", brief(value));
    }
    whole.assign(left).append(right);
    const auto id_of = [&](std::string_view content) {
      const std::int32_t id = vocabulary_.find(content);
      if (id == kNoToken) field.at(rank).refuse("the token {} is not in the vocabulary", brief(content));
      return id;
    };
    const std::int32_t left_id = id_of(left), right_id = id_of(right);
    merges_.add(left_id, right_id, {static_cast<std::uint32_t>(rank), id_of(whole)});
  }
}

BpeModel::Symbol BpeModel::symbol(std::string_view character) const {
  Symbol symbol;
  symbol.id = vocabulary_.find(character);
  if (symbol.id != kNoToken || !byte_fallback_) return symbol;
  for (const char c : character) {
    const std::int32_t id = vocabulary_.find(fmt::format("<0x{:02X}>", static_cast<unsigned char>(c)));
    if (id == kNoToken) return {};
    symbol.bytes.push_back(id);
  }
  return symbol;
}

void BpeModel::append_symbols(std::string_view piece, std::vector<std::int32_t>& ids) const {
  bool unk_waits = false;  // fused with what follows, so written late; bytes do not end it
  Symbol made;
  for (std::size_t i = 0; i < piece.size();) {
    const auto byte = static_cast<unsigned char>(piece[i]);
    const bool is_single = is_byte_level_ || byte < 0x80;
    const std::size_t length = is_single ? 1 : code_point(piece, i).length;
    if (!is_single) made = symbol(piece.substr(i, length));
    const Symbol& now = is_single ? single_[byte] : made;
    i += length;
    if (now.id != kNoToken) {
      if (unk_waits) ids.push_back(unk_);
      unk_waits = false;
      ids.push_back(now.id);
    } else if (!now.bytes.empty()) {
      ids.insert(ids.end(), now.bytes.begin(), now.bytes.end());
    } else if (unk_ != kNoToken) {
      if (unk_waits && !fuse_unk_) ids.push_back(unk_);
      unk_waits = true;
    }  // else the character is dropped
  }
  if (unk_waits) ids.push_back(unk_);
}

void BpeModel::append_uncached(std::string_view piece, std::vector<std::int32_t>& ids) const {
  if (ignore_merges_) {
    const std::int32_t id = whole_pieces_.find(piece);
    if (id != kNoToken) {
      ids.push_back(id);
      return;
    }
  }
  thread_local std::vector<std::int32_t> symbols;
  symbols.clear();
  append_symbols(piece, symbols);
  merges_.apply(symbols);
  ids.insert(ids.end(), symbols.begin(), symbols.end());
  constexpr std::size_t kLongestKept = std::size_t{1} << 20;
  if (symbols.capacity() > kLongestKept) std::vector<std::int32_t>().swap(symbols);
}

void BpeModel::append_ids(std::string_view piece, std::vector<std::int32_t>& ids) const {
  if (piece.empty()) return;
  if (piece.size() > PieceCache::kLongestPiece) return append_uncached(piece, ids);
  thread_local PieceCache cache;
  cache.belong_to(serial_);
  const PieceCache::Key key(piece);
  if (cache.append(key, ids)) return;
  const std::size_t before = ids.size();
  append_uncached(piece, ids);
  cache.put(key, std::span(ids).subspan(before));
}

bool BpeModel::begins_words(std::string_view mark) const {
  if (is_byte_level_ || mark.empty() || vocabulary_.find(mark) == kNoToken) return false;
  for (std::size_t id = 0; id < vocabulary_.ids(); ++id) {
    std::string_view rest = vocabulary_.content(static_cast<std::int32_t>(id));
    while (rest.starts_with(mark)) rest.remove_prefix(mark.size());
    if (rest.find(mark) != std::string_view::npos) return false;
  }
  return true;
}

}  // namespace cartan::data::bpe
