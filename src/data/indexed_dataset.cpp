// Every number of the .idx file is distrusted until it is checked: sizes first, so that nothing is read
// beyond the mapping, then the arrays.
#include "cartan/data/indexed_dataset.hpp"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <limits>

#include "cartan/core/error.hpp"
#include "index_layout.hpp"
#include "token_access.hpp"

namespace cartan::data {
namespace {

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

MappedFile open_part(const std::string& path, const std::string& prefix) {
  try {
    return MappedFile(path);
  } catch (const MissingError&) {
    if (path.ends_with(".idx") && exists(prefix + ".bin"))
      throw MissingError(
          "{}: no such file, but there is {}.bin: name it so, with its suffix, if it is a file of tokens "
          "only "
          "(of llm.c or nanoGPT); else copy the .idx file too",
          path, prefix);
    throw MissingError(
        "{}: no such file; a token file is a pair {}.bin and {}.idx, made by cartan tokenize --output {}",
        path, prefix, prefix, prefix);
  }
}

std::string printable(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte b : bytes) {
    const auto c = static_cast<unsigned char>(b);
    text += std::isprint(c) != 0 ? fmt::format("{}", static_cast<char>(c)) : fmt::format("\\x{:02x}", c);
  }
  return text;
}

/// Sign-extends a token; a negative one becomes a huge number.
template <class T>
std::uint64_t widen(T token) {
  return static_cast<std::uint64_t>(std::int64_t{+token});
}

/// Copies tokens of type T; returns the first place whose value is negative or not below `limit`, or -1.
template <class T>
Index copy_tokens(const std::byte* from, std::span<std::int32_t> out, std::uint64_t limit) {
  std::uint64_t largest = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const T token = load<T>(from, static_cast<Index>(i));
    largest = std::max(largest, widen(token));
    out[i] = static_cast<std::int32_t>(widen(token));
  }
  if (largest < limit) return -1;
  for (Index i = 0;; ++i)
    if (widen(load<T>(from, i)) >= limit) return i;
}

TokenType checked_type(std::uint8_t code, const std::string& path) {
  if (code == 6 || code == 7)
    throw DataError(
        "{}: holds fp{} values (type code {}), expected integer token ids; make it again with cartan "
        "tokenize",
        path, code == 6 ? 64 : 32, code);
  if (code < 1 || code > 8)
    throw DataError("{}: unknown type code {}, expected 1 to 5 or 8; {}", path, code, kRemedy);
  return static_cast<TokenType>(code);
}

}  // namespace

std::string dataset_prefix(std::string_view path) {
  if (path.ends_with(".bin") || path.ends_with(".idx")) path.remove_suffix(4);
  return std::string(path);
}

std::string_view name_of(TokenType type) {
  switch (type) {
    case TokenType::u8:
      return "u8";
    case TokenType::i8:
      return "i8";
    case TokenType::i16:
      return "i16";
    case TokenType::i32:
      return "i32";
    case TokenType::i64:
      return "i64";
    case TokenType::u32:
      return "u32";
    case TokenType::u16:
      break;
  }
  return "u16";
}

Index size_of(TokenType type) {
  return with_type(type, [](auto zero) { return static_cast<Index>(sizeof zero); });
}

TokenType token_type_for(Index vocab_size) { return vocab_size < 65500 ? TokenType::u16 : TokenType::i32; }

IndexedDataset::IndexedDataset(std::string_view prefix, const RawFormat& raw)
    : prefix_(dataset_prefix(prefix)),
      idx_(prefix.ends_with(".bin") && !exists(idx_path()) ? std::nullopt
                                                           : std::optional(open_part(idx_path(), prefix_))),
      bin_(open_part(bin_path(), prefix_)) {
  if (is_raw()) {
    open_raw(raw);
    return;
  }
  parse_header();
  check_sequences();
  check_documents();
  tokens_ = bin_bytes() / size_of(type_);
  open_mask();
}

const std::byte* IndexedDataset::lengths() const { return idx_->bytes().data() + kHeaderBytes; }
const std::byte* IndexedDataset::offsets() const { return lengths() + 4 * sequences_; }
const std::byte* IndexedDataset::document_indices() const { return offsets() + 8 * sequences_; }

void IndexedDataset::parse_header() {
  const auto bytes = idx_->bytes();
  const std::size_t magic_bytes = std::min(bytes.size(), kMagic.size());
  const std::string_view magic(reinterpret_cast<const char*>(bytes.data()), magic_bytes);
  if (bytes.empty()) throw DataError("{}: the file is empty, expected an index; {}", idx_path(), kRemedy);
  if (magic != kMagic.substr(0, magic_bytes))
    throw DataError(
        "{}: not an index of a token file: expected it to begin with MMIDIDX, found \"{}\"; give the "
        "prefix of files made by cartan tokenize or Megatron-LM",
        idx_path(), printable(bytes.first(magic_bytes)));
  if (idx_bytes() < kHeaderBytes)
    throw DataError("{}: cut inside the header: {} bytes, expected at least {}; {}", idx_path(), idx_bytes(),
                    kHeaderBytes, kRemedy);
  const std::byte* header = bytes.data() + kMagic.size();
  const auto version = load<std::uint64_t>(header);
  if (version != kVersion)
    throw DataError("{}: index version {}, expected {}; make it again with cartan tokenize", idx_path(),
                    version, kVersion);
  type_ = checked_type(load<std::uint8_t>(header + 8), idx_path());
  const auto sequences = load<std::uint64_t>(header + 9);
  const auto indices = load<std::uint64_t>(header + 17);
  // The counts are compared with the file's size before they are multiplied, so that nothing can overflow.
  const auto rest = static_cast<std::uint64_t>(idx_bytes() - kHeaderBytes);
  if (sequences > rest / 12 || indices > rest / 8 || 12 * sequences + 8 * indices > rest)
    throw DataError(
        "{}: cut: the header announces {} sequences and {} document indices, which do not fit into {} bytes; "
        "{}",
        idx_path(), sequences, indices, idx_bytes(), kRemedy);
  if (indices == 0)
    throw DataError("{}: no document indices, expected one for each document and one more; {}", idx_path(),
                    kRemedy);
  sequences_ = static_cast<Index>(sequences);
  documents_ = static_cast<Index>(indices) - 1;
  const std::uint64_t surplus = rest - (12 * sequences + 8 * indices);
  has_modes_ = surplus != 0;
  if (surplus != 0 && surplus != sequences)
    throw DataError("{}: {} sequences and {} document indices take {} bytes (with modes {}), found {}; {}",
                    idx_path(), sequences, indices, idx_bytes() - static_cast<Index>(surplus),
                    idx_bytes() - static_cast<Index>(surplus) + sequences_, idx_bytes(), kRemedy);
}

void IndexedDataset::check_sequences() const {
  const Index token_bytes = size_of(type_);
  Index expected = 0;  // offset of the next sequence; never beyond the .bin file, so it cannot overflow
  for (Index i = 0; i < sequences_; ++i) {
    const auto length = load<std::int32_t>(lengths(), i);
    const auto offset = load<std::int64_t>(offsets(), i);
    if (length < 0)
      throw DataError("{}: sequence {} has the length {}, expected 0 or more; {}", idx_path(), i, length,
                      kRemedy);
    if (offset != expected)
      throw DataError("{}: sequence {} begins at byte {} of {}, expected {}, the end of the one before; {}",
                      idx_path(), i, offset, bin_path(), expected, kRemedy);
    expected += length * token_bytes;
    if (expected > bin_bytes())
      throw DataError("{}: cut: {} bytes, but sequence {} of {} in {} ends at byte {}; {}", bin_path(),
                      bin_bytes(), i, sequences_, idx_path(), expected, kRemedy);
  }
  if (expected != bin_bytes())
    throw DataError(
        "{}: {} bytes, but the sequences in {} ({} of type {}) take {}: the two do not belong together; {}",
        bin_path(), bin_bytes(), idx_path(), sequences_, name_of(type_), expected, kRemedy);
}

void IndexedDataset::check_documents() const {
  Index before = 0;
  for (Index d = 0; d <= documents_; ++d) {
    const auto index = load<std::int64_t>(document_indices(), d);
    if (d == 0 && index != 0)
      throw DataError("{}: document 0 begins with sequence {}, expected 0; {}", idx_path(), index, kRemedy);
    if (index < before || index > sequences_)
      throw DataError(
          "{}: document index {} is {}, expected {} (the one before) to {} (the number of sequences); {}",
          idx_path(), d, index, before, sequences_, kRemedy);
    before = index;
  }
  if (before != sequences_)
    throw DataError("{}: the documents end with sequence {}, expected {}, the number of sequences; {}",
                    idx_path(), before, sequences_, kRemedy);
}

void IndexedDataset::open_mask() {
  const std::string path = prefix_ + ".mask";
  if (!exists(path)) return;
  mask_.emplace(path);
  const auto bytes = mask_->bytes();
  const Index expected = kMaskHeaderBytes + (tokens_ + 7) / 8;
  const bool has_header = bytes.size() >= static_cast<std::size_t>(kMaskHeaderBytes);
  if (!has_header || std::memcmp(bytes.data(), kMaskMagic.data(), kMaskMagic.size()) != 0)
    throw DataError("{}: not a mask of a token file: expected it to begin with {}; {}", path, kMaskMagic,
                    kRemedy);
  if (const auto version = load<std::uint64_t>(bytes.data() + kMaskMagic.size()); version != kMaskVersion)
    throw DataError("{}: mask version {}, expected {}; make it again with cartan tokenize", path, version,
                    kMaskVersion);
  if (static_cast<Index>(bytes.size()) != expected)
    throw DataError("{}: {} bytes, expected {} for the {} tokens of {}: the two do not belong together; {}",
                    path, bytes.size(), expected, tokens_, bin_path(), kRemedy);
}

bool IndexedDataset::is_counted(Index position) const {
  CARTAN_DEBUG_ASSERT(mask_ && position >= 0 && position < tokens_);
  const std::byte bits = mask_->bytes()[static_cast<std::size_t>(kMaskHeaderBytes + position / 8)];
  return (std::to_integer<int>(bits) >> (position % 8) & 1) != 0;
}

Index IndexedDataset::sequence_length(Index sequence) const { return sequence_tokens(sequence).size(); }

IndexRange IndexedDataset::sequence_tokens(Index sequence) const {
  CARTAN_ASSERT(sequence >= 0 && sequence < sequences_);
  if (is_raw()) return document_tokens(sequence);
  const Index begin = load<std::int64_t>(offsets(), sequence) / size_of(type_);
  return {begin, begin + load<std::int32_t>(lengths(), sequence)};
}

IndexRange IndexedDataset::document_sequences(Index document) const {
  CARTAN_ASSERT(document >= 0 && document < documents_);
  if (is_raw()) return {document, document + 1};
  return {load<std::int64_t>(document_indices(), document),
          load<std::int64_t>(document_indices(), document + 1)};
}

IndexRange IndexedDataset::document_tokens(Index document) const {
  if (is_raw()) {
    CARTAN_ASSERT(document >= 0 && document < documents_);
    const auto place = static_cast<std::size_t>(document);
    return {raw_documents_[place], raw_documents_[place + 1]};
  }
  const IndexRange range = document_sequences(document);
  const auto begin_of = [&](Index sequence) {
    return sequence == sequences_ ? tokens_ : load<std::int64_t>(offsets(), sequence) / size_of(type_);
  };
  return {begin_of(range.begin), begin_of(range.end)};
}

Index IndexedDataset::document_of_token(Index position) const {
  CARTAN_ASSERT(position >= 0 && position < tokens_);
  // The last document that begins at or before `position`; empty ones that begin there come earlier.
  Index low = 0, high = documents_;
  while (high - low > 1) {
    const Index middle = low + (high - low) / 2;
    (document_tokens(middle).begin <= position ? low : high) = middle;
  }
  return low;
}

void IndexedDataset::read_tokens(Index first, std::span<std::int32_t> out) const {
  read_tokens(first, out, Index{std::numeric_limits<std::int32_t>::max()} + 1);
}

void IndexedDataset::read_tokens(Index first, std::span<std::int32_t> out, Index vocab_size) const {
  CARTAN_ASSERT(first >= 0 && first <= tokens_ && static_cast<Index>(out.size()) <= tokens_ - first);
  CARTAN_ASSERT(vocab_size <= Index{std::numeric_limits<std::int32_t>::max()} + 1);
  if (out.empty()) return;
  const std::byte* from = bin_.bytes().data() + header_bytes_ + first * size_of(type_);
  const Index bad = with_type(type_, [&](auto zero) {
    return copy_tokens<decltype(zero)>(from, out, static_cast<std::uint64_t>(vocab_size));
  });
  if (bad < 0) return;
  const auto id = with_type(type_, [&](auto zero) { return widen(load<decltype(zero)>(from, bad)); });
  refuse_token(first + bad, static_cast<std::int64_t>(id), vocab_size);
}

void IndexedDataset::refuse_token(Index position, std::int64_t id, Index vocab_size) const {
  const Index document = document_of_token(position);
  throw DataError(
      "{}: document {}, position {} (token {} of the file): token id {} is not in the vocabulary, expected 0 "
      "to {}; tokenize with the model's tokenizer or raise model.vocab",
      bin_path(), document, position - document_tokens(document).begin, position, id, vocab_size - 1);
}

}  // namespace cartan::data
