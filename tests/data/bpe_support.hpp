// Small tokenizer.json files that a reader checks by hand.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cartan/data/tokenizer.hpp"
#include "data/bpe/byte_level.hpp"
#include "data/bpe/json_field.hpp"
#include "data/data_test_support.hpp"

namespace cartan::data {

using bpe::SortedJson;
using Ids = std::vector<std::int32_t>;

/// Bytes of what would take minutes where time grows with the square; less with sanitizers, which take as
/// long for a tenth.
#ifdef CARTAN_INSTRUMENTED
inline constexpr std::size_t kLong = 100'000;
#else
inline constexpr std::size_t kLong = 1'000'000;
#endif

/// A model of these tokens (ids in order) and merges ("a b").
inline SortedJson bpe_model(const std::vector<std::string>& tokens, const std::vector<std::string>& merges) {
  SortedJson vocab = SortedJson::object();
  for (std::size_t i = 0; i < tokens.size(); ++i) vocab[tokens[i]] = i;
  return {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}};
}

/// A whole document with this model; add members as needed.
inline SortedJson tokenizer_document(const SortedJson& model) {
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", SortedJson::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", nullptr},
          {"post_processor", nullptr},
          {"decoder", nullptr},
          {"model", model}};
}

/// All 256 bytes are ids 0 ... 255; then the merges' results, in GPT-2's spelling.
inline SortedJson byte_level_document(const std::vector<std::string>& merges) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte)
    tokens.push_back(bpe::byte_level_character(static_cast<unsigned char>(byte)));
  for (std::string merge : merges) {
    merge.erase(merge.find(' '), 1);
    tokens.push_back(merge);
  }
  SortedJson document = tokenizer_document(bpe_model(tokens, merges));
  document["pre_tokenizer"] = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  document["decoder"] = document["pre_tokenizer"];
  return document;
}

/// SentencePiece's way: U+2581 for spaces, bytes for characters that are not there; ids 0 to 2 are <unk>, <s>
/// and </s>, then the 256 bytes, then `tokens`.
inline SortedJson byte_fallback_document(std::vector<std::string> tokens,
                                         const std::vector<std::string>& merges) {
  std::vector<std::string> all{"<unk>", "<s>", "</s>"};
  for (int byte = 0; byte < 256; ++byte) all.push_back(fmt::format("<0x{:02X}>", byte));
  all.insert(all.end(), tokens.begin(), tokens.end());
  SortedJson model = bpe_model(all, merges);
  model["unk_token"] = "<unk>";
  model["byte_fallback"] = true;
  model["fuse_unk"] = true;
  SortedJson document = tokenizer_document(model);
  for (int id = 0; id < 3; ++id)
    document["added_tokens"].push_back({{"id", id},
                                        {"content", all[static_cast<std::size_t>(id)]},
                                        {"single_word", false},
                                        {"lstrip", false},
                                        {"rstrip", false},
                                        {"normalized", false},
                                        {"special", true}});
  document["normalizer"] = {{"type", "Sequence"},
                            {"normalizers",
                             {{{"type", "Prepend"}, {"prepend", "\u2581"}},
                              {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}}}};
  document["decoder"] = {{"type", "Sequence"},
                         {"decoders",
                          {{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
                           {{"type", "ByteFallback"}},
                           {{"type", "Fuse"}},
                           {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}};
  return document;
}

inline SortedJson added_token(std::int32_t id, std::string_view content, const SortedJson& flags = {}) {
  SortedJson token = {{"id", id}, {"content", content}, {"normalized", false}, {"special", true}};
  if (!flags.is_null()) token.update(flags);
  return token;
}

inline std::unique_ptr<Tokenizer> tokenizer_of(const SortedJson& document) {
  return parse_tokenizer(document.dump(), "tokenizer.json");
}

}  // namespace cartan::data
