// Token files, memory mapped and read only. In Megatron-LM's .bin/.idx layout:
//   PREFIX.bin   the tokens of all sequences one after another, little-endian, in one integer type
//   PREFIX.idx   9 bytes "MMIDIDX\0\0"; u64 version 1; u8 type; u64 sequences S; u64 document indices D;
//                S x i32 lengths in tokens; S x i64 offsets into .bin in bytes; D x i64 first sequence of
//                each document, then S; in multimodal files S x i8 modes
//   PREFIX.mask  only of instruction data, whose documents are samples: 8 bytes "CARTMASK"; u64 version 1;
//   one
//                bit a token, the first in the lowest bit: whether the token counts in the loss as a target
// And a .bin file alone:
//   llm.c        256 x i32: magic 20240520, version 1, tokens (which are u16); or 20240801, 7, tokens (u32)
//   raw          nothing but tokens of type u16 (nanoGPT) or u32
// Opening checks the whole index (a scan at memory speed), so that later accesses need no checks of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cartan/core/file.hpp"
#include "cartan/core/types.hpp"

namespace cartan::data {

/// Integer type of the tokens on disk; the values are the codes in the .idx file (6 and 7 are floats), but
/// for u32, which only files without one have.
enum class TokenType : std::uint8_t { u8 = 1, i8 = 2, i16 = 3, i32 = 4, i64 = 5, u16 = 8, u32 = 255 };

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

/// What a .bin file without .idx does not say.
struct RawFormat {
  std::optional<TokenType> type = {};  ///< u16 or u32, of a file without header
  Index end_id = -1;  ///< the last token of each document (in files of llm.c: the first); -1: all is one
};

/// Immutable; all members may be called by several threads. Move-only.
class IndexedDataset {
 public:
  /// `prefix` may carry the suffix .bin or .idx; with .bin, and where there is no .idx, `raw` says how it is
  /// read. Throws MissingError, IoError, ConfigError where `raw` does not say enough, or DataError with the
  /// file, what was expected and what was found.
  explicit IndexedDataset(std::string_view prefix, const RawFormat& raw = {});

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
  /// 0 without a .idx.
  Index idx_bytes() const { return idx_ ? static_cast<Index>(idx_->bytes().size()) : 0; }
  /// "Megatron-LM", "llm.c" or "raw".
  std::string_view format() const { return format_; }
  /// Whether the documents are samples, of which only some tokens count.
  bool has_mask() const { return mask_.has_value(); }
  /// Whether a token counts in the loss as a target; has_mask() only.
  bool is_counted(Index position) const;

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
  bool is_raw() const { return !idx_; }
  void open_raw(const RawFormat& raw);
  void find_raw_documents(Index end_id, bool begins);
  void open_mask();
  const std::byte* lengths() const;
  const std::byte* offsets() const;
  const std::byte* document_indices() const;
  void parse_header();
  void check_sequences() const;
  void check_documents() const;
  [[noreturn]] void refuse_token(Index position, std::int64_t id, Index vocab_size) const;

  std::string prefix_;
  std::optional<MappedFile> idx_;
  MappedFile bin_;
  std::optional<MappedFile> mask_;
  std::string_view format_ = "Megatron-LM";
  Index header_bytes_ = 0;            ///< of bin_
  std::vector<Index> raw_documents_;  ///< without .idx: where each begins, then the number of tokens
  TokenType type_ = TokenType::i32;
  Index sequences_ = 0, documents_ = 0, tokens_ = 0;
  bool has_modes_ = false;
};

}  // namespace cartan::data
