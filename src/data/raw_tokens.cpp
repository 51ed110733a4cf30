// .bin files without .idx: their header, if any, says what is in them; the size of the file must agree.
#include <algorithm>
#include <array>

#include "cartan/core/error.hpp"
#include "cartan/data/indexed_dataset.hpp"
#include "token_access.hpp"

namespace cartan::data {

void IndexedDataset::open_raw(const RawFormat& raw) {
  struct Header {
    std::int32_t magic, version;
    TokenType type;
  };
  constexpr std::array<Header, 2> kHeaders{{{20240520, 1, TokenType::u16}, {20240801, 7, TokenType::u32}}};
  constexpr std::int32_t kEvaluationMagic = 20240522;
  constexpr Index kHeaderInts = 256;
  const std::byte* bytes = bin_.bytes().data();
  const auto magic = bin_bytes() >= 4 ? load<std::int32_t>(bytes) : 0;
  if (magic == kEvaluationMagic)
    throw DataError("{}: a file of questions of llm.c (magic {}), expected one of tokens", bin_path(), magic);
  const auto header = std::find_if(kHeaders.begin(), kHeaders.end(),
                                   [&](const Header& known) { return known.magic == magic; });
  const bool is_llm_c = header != kHeaders.end();
  if (is_llm_c) {
    header_bytes_ = 4 * kHeaderInts;
    if (bin_bytes() < header_bytes_)
      throw DataError("{}: cut inside the header: {} bytes, expected at least {}; copy the file again",
                      bin_path(), bin_bytes(), header_bytes_);
    const auto version = load<std::int32_t>(bytes, 1), count = load<std::int32_t>(bytes, 2);
    if (version != header->version)
      throw DataError("{}: version {} of llm.c's format with magic {}, expected {}", bin_path(), version,
                      magic, header->version);
    type_ = header->type;
    const Index found = bin_bytes() - header_bytes_;
    if (count < 0 || Index{count} * size_of(type_) != found)
      throw DataError(
          "{}: the header announces {} tokens of type {}, {} bytes, found {}; copy the file again",
          bin_path(), count, name_of(type_), Index{count} * size_of(type_), found);
  } else if (raw.type) {
    type_ = *raw.type;
    if (bin_bytes() % size_of(type_) != 0)
      throw DataError("{}: {} bytes are no whole number of tokens of type {}", bin_path(), bin_bytes(),
                      name_of(type_));
  } else {
    throw ConfigError(
        "{}: there is no {} beside it and it has no header of llm.c, so it is read as tokens only, of a type "
        "that the file does not say: give data.raw-type = u16 (as nanoGPT writes; {} tokens) or u32 ({} "
        "tokens)",
        bin_path(), idx_path(), bin_bytes() / 2, bin_bytes() / 4);
  }
  format_ = is_llm_c ? "llm.c" : "raw";
  tokens_ = (bin_bytes() - header_bytes_) / size_of(type_);
  find_raw_documents(raw.end_id, is_llm_c);
}

void IndexedDataset::find_raw_documents(Index end_id, bool begins) {
  raw_documents_ = {0};
  if (end_id >= 0) {
    const std::byte* from = bin_.bytes().data() + header_bytes_;
    const Index after = begins ? 0 : 1;
    with_type(type_, [&](auto zero) {
      for (Index i = 0; i < tokens_; ++i)
        if (Index{load<decltype(zero)>(from, i)} == end_id && i + after > 0 && i + after < tokens_)
          raw_documents_.push_back(i + after);
    });
  }
  if (tokens_ > 0) raw_documents_.push_back(tokens_);
  sequences_ = documents_ = static_cast<Index>(raw_documents_.size()) - 1;
}

}  // namespace cartan::data
