// The byte tokenizer, and what all tokenizers share.
#include "cartan/data/tokenizer.hpp"

#include <filesystem>

#include "bpe/hf_tokenizer.hpp"
#include "cartan/core/error.hpp"
#include "cartan/core/file.hpp"
#include "cartan/data/utf8.hpp"

namespace cartan::data {
namespace {

/// Ids 0 ... 255 are bytes, 256 ends a document.
class ByteTokenizer final : public Tokenizer {
 public:
  std::string_view name() const override { return "byte"; }
  Index vocab_size() const override { return kEnd + 1; }
  std::int32_t end_of_text() const override { return kEnd; }
  std::optional<std::int32_t> token_id(std::string_view content) const override {
    if (content.size() != 1) return std::nullopt;
    return static_cast<unsigned char>(content[0]);
  }

  void append_ids(std::string_view text, bool, std::vector<std::int32_t>& ids) const override {
    ids.reserve(ids.size() + text.size());
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  }
  std::size_t stable_prefix(std::string_view text) const override { return text.size(); }
  std::unique_ptr<TokenDecoder> decoder(const DecodeOptions&) const override {
    return std::make_unique<Decoder>();
  }

 private:
  static constexpr std::int32_t kEnd = 256;
  struct Decoder final : TokenDecoder {
    std::string push(std::int32_t id) override {
      if (id < 0 || id > kEnd)
        throw DataError("token id {} is outside the vocabulary of tokenizer byte (0 to {})", id, kEnd);
      return id == kEnd ? std::string() : std::string(1, static_cast<char>(id));
    }
    std::string finish() override { return {}; }
  };
};

}  // namespace

void Tokenizer::append_ids_between(std::string_view text, std::optional<std::int32_t>,
                                   std::optional<std::int32_t>, std::vector<std::int32_t>& ids) const {
  append_ids(text, true, ids);
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  append_ids(text, true, ids);
  return ids;
}

std::vector<std::int32_t> Tokenizer::encode_with_special(std::string_view text) const {
  std::vector<std::int32_t> ids(ids_before().begin(), ids_before().end());
  append_ids(text, true, ids);
  ids.insert(ids.end(), ids_after().begin(), ids_after().end());
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, const DecodeOptions& options) const {
  const std::unique_ptr<TokenDecoder> now = decoder(options);
  std::string text;
  for (const std::int32_t id : ids) text += now->push(id);
  return text + now->finish();
}

std::string DecodeStream::push(std::int32_t id) {
  pending_ += decoder_->push(id);
  return take_utf8(pending_, false);
}

std::string DecodeStream::finish() {
  pending_ += decoder_->finish();
  options_.at_start = true;
  decoder_ = tokenizer_.decoder(options_);
  return take_utf8(pending_, true);
}

bool names_tokenizer_file(std::string_view spec) {
  std::error_code ignored;
  return spec.ends_with(".json") || std::filesystem::is_directory(spec, ignored);
}

std::unique_ptr<Tokenizer> make_tokenizer(std::string_view spec) {
  namespace fs = std::filesystem;
  if (spec == "byte") return std::make_unique<ByteTokenizer>();
  if (!names_tokenizer_file(spec))
    throw ConfigError(
        "data.tokenizer = {} is not known: use byte, the path of a tokenizer.json, or of the folder that "
        "holds it",
        spec);
  fs::path path = spec;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    path /= "tokenizer.json";
    if (!fs::exists(path, ignored))
      throw MissingError("data.tokenizer = {}: the folder has no tokenizer.json (the format of Hugging Face)",
                         spec);
  }
  if (!fs::exists(path, ignored)) throw MissingError("data.tokenizer = {}: no such file", spec);
  return bpe::make_hf_tokenizer(read_file(path), path.string(), spec);
}

std::unique_ptr<Tokenizer> parse_tokenizer(std::string_view json, std::string_view file) {
  return bpe::make_hf_tokenizer(json, file, file);
}

}  // namespace cartan::data
