// The byte tokenizer, and what all tokenizers share.
#include "cartan/data/tokenizer.hpp"

#include "cartan/core/error.hpp"
#include "cartan/data/utf8.hpp"

namespace cartan::data {
namespace {

/// Ids 0 ... 255 are bytes, 256 ends a document.
class ByteTokenizer final : public Tokenizer {
 public:
  std::string_view name() const override { return "byte"; }
  Index vocab_size() const override { return kEnd + 1; }
  std::int32_t end_of_text() const override { return kEnd; }

  void append_ids(std::string_view text, bool, std::vector<std::int32_t>& ids) const override {
    ids.reserve(ids.size() + text.size());
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  }
  std::size_t stable_prefix(std::string_view text) const override { return text.size(); }
  std::string token_bytes(std::int32_t id, bool) const override {
    if (id < 0 || id > kEnd)
      throw DataError("token id {} is outside the vocabulary of tokenizer byte (0 to {})", id, kEnd);
    return id == kEnd ? std::string() : std::string(1, static_cast<char>(id));
  }

 private:
  static constexpr std::int32_t kEnd = 256;
};

}  // namespace

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  append_ids(text, true, ids);
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (std::size_t i = 0; i < ids.size(); ++i) text += token_bytes(ids[i], i == 0);
  return text;
}

std::string DecodeStream::push(std::int32_t id) {
  pending_ += tokenizer_.token_bytes(id, at_start_);
  at_start_ = false;
  return take_utf8(pending_, false);
}

std::string DecodeStream::finish() {
  at_start_ = true;
  return take_utf8(pending_, true);
}

std::unique_ptr<Tokenizer> make_tokenizer(std::string_view spec) {
  if (spec == "byte") return std::make_unique<ByteTokenizer>();
  if (spec.ends_with(".json"))
    throw ConfigError("data.tokenizer = {}: this version of cartan has only the tokenizer byte", spec);
  throw ConfigError("data.tokenizer = {} is not known: use byte", spec);
}

}  // namespace cartan::data
