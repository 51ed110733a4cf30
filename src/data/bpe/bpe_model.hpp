// The model of tokenizer.json: its vocabulary and merges, and the ids of one piece of text.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "json_field.hpp"
#include "merges.hpp"
#include "vocabulary.hpp"

namespace cartan::data::bpe {

/// Immutable; one object serves all threads, each of which has a bounded cache of pieces.
class BpeModel {
 public:
  /// `is_byte_level`: pieces are bytes, and the vocabulary spells them by byte_level_character(). `ids`: room
  /// for that many. Throws DataError.
  BpeModel(const JsonField& field, bool is_byte_level);

  const Vocabulary& vocabulary() const { return vocabulary_; }
  /// Appends the ids of a piece: valid UTF-8, or bytes if is_byte_level. Never slower than O(n log n).
  void append_ids(std::string_view piece, std::vector<std::int32_t>& ids) const;
  /// append_ids() without the cache.
  void append_uncached(std::string_view piece, std::vector<std::int32_t>& ids) const;

  /// Whether `mark` is a token that stands only at the beginnings of tokens, alone or several times: then no
  /// merge crosses the place before a run of marks, and a text can be cut there.
  bool begins_words(std::string_view mark) const;

 private:
  /// What a character becomes before merging.
  struct Symbol {
    std::int32_t id = kNoToken;
    std::vector<std::int32_t> bytes = {};  ///< where there is no id: those of its bytes (byte_fallback)
  };
  void read_vocabulary(const JsonField& field);
  void read_merges(const JsonField& field);
  Symbol symbol(std::string_view character) const;
  void append_symbols(std::string_view piece, std::vector<std::int32_t>& ids) const;

  std::uint64_t serial_;  ///< of this object, for the caches
  bool is_byte_level_;
  bool ignore_merges_ = false, fuse_unk_ = false, byte_fallback_ = false;
  std::int32_t unk_ = kNoToken;
  Vocabulary vocabulary_;
  Vocabulary whole_pieces_;  ///< with ignore_merges: tokens as the pieces that they are
  MergeTable merges_;
  std::array<Symbol, 256> single_;  ///< of bytes, or of ASCII characters
};

}  // namespace cartan::data::bpe
