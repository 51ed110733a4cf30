// Streams the tokens, remembers lengths and documents, and writes the index at the end.
#include "cartan/data/indexed_dataset_writer.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <utility>

#include "cartan/core/error.hpp"
#include "cartan/core/file.hpp"
#include "index_layout.hpp"
#include "output_file.hpp"

namespace cartan::data {
namespace {

/// Appends `ids` as values of type T; returns the first id that does not fit, or null.
template <class T>
const std::int32_t* encode_as(std::span<const std::int32_t> ids, std::vector<std::byte>& out) {
  out.resize(ids.size() * sizeof(T));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (!std::in_range<T>(ids[i])) return &ids[i];
    const T value = static_cast<T>(ids[i]);
    std::memcpy(out.data() + i * sizeof(T), &value, sizeof value);
  }
  return nullptr;
}

const std::int32_t* encode(TokenType type, std::span<const std::int32_t> ids, std::vector<std::byte>& out) {
  switch (type) {
    case TokenType::u8:
      return encode_as<std::uint8_t>(ids, out);
    case TokenType::i8:
      return encode_as<std::int8_t>(ids, out);
    case TokenType::i16:
      return encode_as<std::int16_t>(ids, out);
    case TokenType::i32:
      return encode_as<std::int32_t>(ids, out);
    case TokenType::i64:
      return encode_as<std::int64_t>(ids, out);
    case TokenType::u32:
      return encode_as<std::uint32_t>(ids, out);
    case TokenType::u16:
      break;
  }
  return encode_as<std::uint16_t>(ids, out);
}

/// A target that cannot be replaced by a file is refused before work is lost on it.
std::string checked_target(std::string path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    throw IoError("cannot write {}: it is a folder; choose another prefix", path);
  return path;
}

void remove_old(const std::string& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT)
    throw IoError("cannot replace {}: {}", path, errno_text(errno));
}

}  // namespace

IndexedDatasetWriter::IndexedDatasetWriter(std::string_view prefix, TokenType type, bool has_mask)
    : prefix_(dataset_prefix(prefix)), type_(type) {
  CARTAN_ASSERT(type != TokenType::u32);  // no index has a code for it
  checked_target(prefix_ + ".idx");
  const std::string mask_path = checked_target(prefix_ + ".mask");
  bin_ = std::make_unique<OutputFile>(checked_target(prefix_ + ".bin"));
  if (!has_mask) return;
  mask_ = std::make_unique<OutputFile>(mask_path);
  mask_->write(std::as_bytes(std::span(kMaskMagic)));
  mask_->write_values<std::uint64_t>(std::array{kMaskVersion});
}

IndexedDatasetWriter::~IndexedDatasetWriter() = default;

void IndexedDatasetWriter::add_tokens(std::span<const std::int32_t> ids) {
  CARTAN_ASSERT(bin_ != nullptr);
  const auto count = static_cast<Index>(ids.size());
  if (count > std::numeric_limits<std::int32_t>::max() - (tokens_ - sequence_begin_))
    throw DataError(
        "{}.bin: a sequence of more than 2147483647 tokens; cut the document into several sequences",
        prefix_);
  if (const std::int32_t* misfit = encode(type_, ids, encoded_))
    throw DataError("{}.bin: token id {} does not fit type {}", prefix_, *misfit, name_of(type_));
  bin_->write(encoded_);
  tokens_ += count;
}

void IndexedDatasetWriter::add_tokens(std::span<const std::int32_t> ids,
                                      std::span<const std::uint8_t> counted) {
  CARTAN_ASSERT(mask_ != nullptr && ids.size() == counted.size());
  Index place = tokens_;
  add_tokens(ids);
  encoded_.clear();
  for (const std::uint8_t counts : counted) {
    mask_bits_ |= unsigned{counts != 0} << (place % 8);
    if (++place % 8 == 0) encoded_.push_back(static_cast<std::byte>(std::exchange(mask_bits_, 0)));
  }
  mask_->write(encoded_);
}

void IndexedDatasetWriter::end_sequence() {
  lengths_.push_back(static_cast<std::int32_t>(tokens_ - sequence_begin_));
  sequence_begin_ = tokens_;
}

void IndexedDatasetWriter::end_document() {
  if (tokens_ > sequence_begin_) end_sequence();
  document_indices_.push_back(sequences());
  document_begin_ = tokens_;
}

void IndexedDatasetWriter::drop_document() {
  CARTAN_ASSERT(bin_ != nullptr && mask_ == nullptr);
  bin_->truncate(document_begin_ * size_of(type_));
  lengths_.resize(static_cast<std::size_t>(document_indices_.back()));
  tokens_ = sequence_begin_ = document_begin_;
}

void IndexedDatasetWriter::finish() {
  CARTAN_ASSERT(bin_ != nullptr && tokens_ == document_begin_ && sequences() == document_indices_.back());
  const std::string bin_path = prefix_ + ".bin", idx_path = prefix_ + ".idx", mask_path = prefix_ + ".mask";
  OutputFile idx(idx_path);
  idx.write(std::as_bytes(std::span(kMagic)));
  idx.write_values<std::uint64_t>(std::array{kVersion});
  idx.write_values<TokenType>(std::array{type_});
  idx.write_values<std::uint64_t>(
      std::array{std::uint64_t{lengths_.size()}, std::uint64_t{document_indices_.size()}});
  idx.write_values<std::int32_t>(lengths_);
  std::int64_t offset = 0;
  for (const std::int32_t length : lengths_) {
    idx.write_values<std::int64_t>(std::array{offset});
    offset += length * size_of(type_);
  }
  idx.write_values<std::int64_t>(document_indices_);
  idx.sync();
  bin_->sync();
  if (mask_) {
    if (tokens_ % 8 != 0)
      mask_->write_values<std::uint8_t>(std::array{static_cast<std::uint8_t>(mask_bits_)});
    mask_->sync();
  }

  remove_old(idx_path);
  remove_old(mask_path);
  bin_->rename();
  bin_.reset();
  try {
    if (mask_) mask_->rename();
    mask_.reset();
    idx.rename();
  } catch (...) {
    ::unlink(bin_path.c_str());
    ::unlink(mask_path.c_str());
    throw;
  }
  const std::filesystem::path folder = std::filesystem::path(prefix_).parent_path();
  sync_directory(folder.empty() ? "." : folder);
}

}  // namespace cartan::data
