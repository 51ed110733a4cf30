// Token files in Megatron-LM's .bin/.idx layout, memory mapped and read only.
//   PREFIX.bin   the tokens of all sequences one after another, little-endian, in one integer type
//   PREFIX.idx   9 bytes "MMIDIDX\0\0"; u64 version 1; u8 type; u64 sequences S; u64 document indices D;
//                S x i32 lengths in tokens; S x i64 offsets into .bin in bytes; D x i64 first sequence of
//                each document, then S; in multimodal files S x i8 modes
// Opening checks the whole index (a scan at memory speed), so that later accesses need no checks of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "cartan/core/file.hpp"
#include "cartan/core/types.hpp"

namespace cartan::data {

/// Integer type of the tokens on disk; the values are the codes in the .idx file (6 and 7 are floats).
enum class TokenType : std::uint8_t { u8 = 1, i8 = 2, i16 = 3, i32 = 4, i64 = 5, u16 = 8 };

/// "u16", ...
std::string_view name_of(TokenType type);
/// Bytes of one token.
Index size_of(TokenType type);
/// The type that `cartan tokenize` writes: u16 for fewer than 65500 ids, as Megatron-LM does, else i32.
TokenType token_type_for(Index vocab_size);

/// [begin, end).
struct IndexRange {
  Index begin = 0, end = 0;
  Index size() const { return end - begin; }
  friend bool operator==(const IndexRange&, const IndexRange&) = default;
};

/// Immutable; all members may be called by several threads. Move-only.
class IndexedDataset {
 public:
  /// `prefix` may carry the suffix .bin or .idx. Throws MissingError, IoError, or DataError with the file,
  /// what was expected and what was found.
  explicit IndexedDataset(std::string_view prefix);

  const std::string& prefix() const { return prefix_; }
  std::string bin_path() const { return prefix_ + ".bin"; }
  std::string idx_path() const { return prefix_ + ".idx"; }
  TokenType token_type() const { return type_; }
  Index sequences() const { return sequences_; }
  Index documents() const { return documents_; }
  Index tokens() const { return tokens_; }
  /// True for multimodal files; the modes have no meaning here.
  bool has_modes() const { return has_modes_; }
  Index bin_bytes() const { return static_cast<Index>(bin_.bytes().size()); }
  Index idx_bytes() const { return static_cast<Index>(idx_.bytes().size()); }

  /// Length of a sequence in tokens.
  Index sequence_length(Index sequence) const;
  /// Positions of a sequence in the stream of all tokens.
  IndexRange sequence_tokens(Index sequence) const;
  IndexRange document_sequences(Index document) const;
  /// Positions of a document in the stream of all tokens.
  IndexRange document_tokens(Index document) const;
  /// The document that holds a token; binary search.
  Index document_of_token(Index position) const;

  /// Copies the tokens [first, first + out.size()) of the stream of all sequences. Throws DataError for a
  /// value that no token id can have: negative, or beyond 2^31 - 1.
  void read_tokens(Index first, std::span<std::int32_t> out) const;

  /// read_tokens, and throws DataError for an id that is not below `vocab_size`.
  void read_tokens(Index first, std::span<std::int32_t> out, Index vocab_size) const;

 private:
  const std::byte* lengths() const;
  const std::byte* offsets() const;
  const std::byte* document_indices() const;
  void parse_header();
  void check_sequences() const;
  void check_documents() const;
  [[noreturn]] void refuse_token(Index position, std::int64_t id, Index vocab_size) const;

  std::string prefix_;
  MappedFile idx_, bin_;
  TokenType type_ = TokenType::i32;
  Index sequences_ = 0, documents_ = 0, tokens_ = 0;
  bool has_modes_ = false;
};

}  // namespace cartan::data
