// Writes Megatron-LM's .bin/.idx pair, and a .mask if wanted (layout: indexed_dataset.hpp). Tokens stream to
// a temporary file; the names appear only when everything is on disk, and a failure leaves nothing behind.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cartan/data/indexed_dataset.hpp"

namespace cartan::data {

class OutputFile;

/// Memory: a buffer, 4 bytes a sequence and 8 bytes a document.
class IndexedDatasetWriter {
 public:
  /// `prefix` may carry the suffix .bin or .idx. Throws IoError.
  IndexedDatasetWriter(std::string_view prefix, TokenType type, bool has_mask = false);
  /// Without finish() the temporary files are removed.
  ~IndexedDatasetWriter();
  IndexedDatasetWriter(const IndexedDatasetWriter&) = delete;
  IndexedDatasetWriter& operator=(const IndexedDatasetWriter&) = delete;

  /// Appends to the open sequence. Throws DataError if an id does not fit the type or the sequence would
  /// exceed 2^31 - 1 tokens, IoError.
  void add_tokens(std::span<const std::int32_t> ids);
  /// The same with a mask: counted[i] says whether ids[i] counts in the loss as a target. With a mask every
  /// token is added so, and no document can be dropped.
  void add_tokens(std::span<const std::int32_t> ids, std::span<const std::uint8_t> counted);
  /// Ends the open sequence, which may be empty.
  void end_sequence();
  /// Ends the open document, and before it the open sequence if that has tokens.
  void end_document();
  /// Forgets what was added since the last end_document(). Throws IoError.
  void drop_document();
  /// Writes the index, syncs the files to disk and gives them their names. Until the last rename there is no
  /// .idx, so that an old index never meets new tokens; an old mask is removed. Throws IoError; nothing is
  /// left then.
  void finish();

  Index sequences() const { return static_cast<Index>(lengths_.size()); }
  Index documents() const { return static_cast<Index>(document_indices_.size()) - 1; }
  /// Tokens added so far.
  Index tokens() const { return tokens_; }

 private:
  std::string prefix_;
  TokenType type_;
  std::unique_ptr<OutputFile> bin_;
  std::unique_ptr<OutputFile> mask_;
  unsigned mask_bits_ = 0;  ///< of the last tokens % 8 tokens
  std::vector<std::int32_t> lengths_;
  std::vector<std::int64_t> document_indices_{0};
  Index tokens_ = 0;
  Index sequence_begin_ = 0;  ///< tokens before the open sequence
  Index document_begin_ = 0;  ///< tokens before the open document
  std::vector<std::byte> encoded_;
};

}  // namespace cartan::data
