// The fuzzer's entry point over small files and thousands of changes of them, the same in every run.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "data/bpe_support.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace cartan::data {
namespace {

void run(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
}

const std::string kText = "The end's 123 \u00E9\u0301 \u4F60\u597D  <s>x</s>\n\n ab\xFF \u2581 the  the";

std::vector<std::string> seeds() {
  SortedJson byte_level =
      tokenizer_document(bpe_model({"a", "b", "ab", "\u0120", "\u0120ab"}, {"a b", "\u0120 ab"}));
  byte_level["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}};
  byte_level["decoder"] = {{"type", "ByteLevel"}};
  byte_level["normalizer"] = {{"type", "NFC"}};
  byte_level["added_tokens"] = {added_token(5, "<s>", {{"lstrip", true}}),
                                added_token(6, "x", {{"single_word", true}})};
  SortedJson fallback = byte_fallback_document({"\u2581", "a", "b", "ab"}, {"a b"});
  for (int byte = 16; byte < 256; ++byte) fallback["model"]["vocab"].erase(fmt::format("<0x{:02X}>", byte));
  SortedJson metaspace =
      tokenizer_document(bpe_model({"a", "b", "\u2581", "\u2581a", "<unk>"}, {"\u2581 a"}));
  metaspace["model"]["unk_token"] = "<unk>";
  metaspace["pre_tokenizer"] = {
      {"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "first"}};
  metaspace["decoder"] = metaspace["pre_tokenizer"];
  metaspace["post_processor"] = {{"type", "BertProcessing"}, {"sep", {"a", 0}}, {"cls", {"b", 1}}};
  SortedJson split = tokenizer_document(bpe_model({"a", "b", " ", "ab"}, {"a b"}));
  split["pre_tokenizer"] = {{"type", "Split"},
                            {"pattern", {{"Regex", "[^\\s]+|\\s+(?!\\S)|a{1,2}"}}},
                            {"behavior", "MergedWithNext"},
                            {"invert", true}};
  split["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", "b"}}}, {"content", "ab"}};
  return {byte_level.dump(), fallback.dump(), metaspace.dump(), split.dump()};
}

TEST(TokenizerFuzz, GoodFiles) {
  for (const std::string& json : seeds()) run(json + '\0' + kText);
  run(kText);
  run("");
  run(std::string(1, '\0'));
}

TEST(TokenizerFuzz, ChangedFiles) {
  std::mt19937 random(99);
  const std::vector<std::string> all = seeds();
  const std::vector<std::string> pieces = {"null", "-1",         "1e99",     "\"\"",    "[]",      "{}",
                                           "true", "4294967296", "\"type\"", "\\u0000", "\"a b\"", "[[[["};
  for (int round = 0; round < 6000; ++round) {
    std::string json = all[random() % all.size()];
    for (unsigned change = 0; change <= random() % 3; ++change) {
      const std::size_t at = random() % json.size();
      switch (random() % 5) {
        case 0:
          json[at] = static_cast<char>(random());
          break;
        case 1:
          json.erase(at, 1 + random() % 12);
          break;
        case 2:
          json.insert(at, pieces[random() % pieces.size()]);
          break;
        case 3:
          json.insert(at, json.substr(random() % json.size(), random() % 40));
          break;
        default: {  // a value becomes another
          const std::size_t colon = json.find(':', at);
          if (colon == std::string::npos) break;
          const std::size_t end = json.find_first_of(",}", colon);
          json.replace(colon + 1, end - colon - 1, pieces[random() % pieces.size()]);
        }
      }
      if (json.empty()) json = "{";
    }
    run(json + '\0' + kText);
  }
}

TEST(TokenizerFuzz, RandomTexts) {
  std::mt19937 random(7);
  const std::vector<std::string> atoms = {"the",      " ",       "\n", "'s", "1",      "\u00E9", "\u0301",
                                          "\xE2\x82", "<|end|>", "<|", ".",  "\u4F60", "\u2028", "T"};
  for (int round = 0; round < 5000; ++round) {
    std::string text;
    for (unsigned i = 0; i < random() % 30; ++i)
      text += random() % 8 == 0 ? std::string(1, static_cast<char>(1 + random() % 255))
                                : atoms[random() % atoms.size()];
    run(text);
  }
}

}  // namespace
}  // namespace cartan::data
