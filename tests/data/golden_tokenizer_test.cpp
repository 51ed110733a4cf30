// Three real tokenizers against what the library that defines the format makes of many texts.
#include <cstdlib>

#include "cartan/core/file.hpp"
#include "cartan/data/tokenizer.hpp"
#include "cartan/data/utf8.hpp"
#include "data/bpe/json_field.hpp"
#include "data/bpe/normalizer.hpp"
#include "data/bpe/pre_tokenizer.hpp"
#include "data_test_support.hpp"

namespace cartan::data {
namespace {

namespace fs = std::filesystem;
using bpe::SortedJson;
using Ids = std::vector<std::int32_t>;

const fs::path kShared = fs::path(CARTAN_SOURCE_DIR) / "../shared";

/// The text of a tokenizer.json; empty where it is not on this machine.
std::string tokenizer_json(const std::string& name) {
  if (name == "smollm2") {
    // The folder that make/smollm2_to_hf.py of the golden data writes.
    const char* folder = std::getenv("CARTAN_SMOLLM2");
    return folder == nullptr ? std::string() : read_file(fs::path(folder) / "tokenizer.json");
  }
  const fs::path packed = kShared / "tokenizers" / (name + ".tokenizer.json.gz");
  if (!fs::exists(packed)) return {};
  const TemporaryFolder folder;
  const std::string command = "gzip -dc '" + packed.string() + "' > '" + (folder / "tokenizer.json") + "'";
  return std::system(command.c_str()) == 0 ? read_file(folder / "tokenizer.json") : std::string();
}

std::string bytes_of(const SortedJson& text_case) {
  const std::string hex = text_case.at("utf8_hex");
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

class GoldenTokenizer : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const fs::path expected = kShared / "golden/tokenizers" / (std::string(GetParam()) + ".json");
    text_ = tokenizer_json(GetParam());
    if (text_.empty() || !fs::exists(expected))
      GTEST_SKIP() << "the tokenizer " << GetParam() << " is not on this machine";
    expected_ = SortedJson::parse(read_file(expected));
    tokenizer_ = parse_tokenizer(text_, GetParam());
  }
  /// Every text of the golden file.
  std::vector<SortedJson> cases() const {
    std::vector<SortedJson> all;
    for (const char* list : {"cases", "fuzz"})
      all.insert(all.end(), expected_[list].begin(), expected_[list].end());
    all.push_back(expected_["long"]);
    return all;
  }
  std::string text_;
  SortedJson expected_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(GoldenTokenizer, IdsAndTextsAreThose) {
  EXPECT_EQ(tokenizer_->vocab_size(), expected_["vocab_size_with_added"].get<Index>());
  for (const SortedJson& one : cases()) {
    const std::string text = bytes_of(one);
    const Ids ids = one.at("ids");
    EXPECT_EQ(tokenizer_->encode(text), ids) << text;
    if (one.contains("ids_with_special")) {
      EXPECT_EQ(tokenizer_->encode_with_special(text), one["ids_with_special"].get<Ids>()) << text;
    }
    EXPECT_EQ(valid_utf8(tokenizer_->decode(ids)), one.at("decoded").get<std::string>()) << text;
    if (one.contains("decoded_skip_special")) {
      EXPECT_EQ(valid_utf8(tokenizer_->decode(ids, {.skip_special = true})),
                one["decoded_skip_special"].get<std::string>())
          << text;
    }
  }
}

TEST_P(GoldenTokenizer, IdsOfNoTextDecodeToTheSame) {
  for (const SortedJson& one : expected_["decode"]) {
    const Ids ids = one.at("ids");
    EXPECT_EQ(valid_utf8(tokenizer_->decode(ids)), one.at("decoded").get<std::string>()) << one;
    EXPECT_EQ(valid_utf8(tokenizer_->decode(ids, {.skip_special = true})),
              one.at("decoded_skip_special").get<std::string>())
        << one;
  }
}

TEST_P(GoldenTokenizer, AStreamConcatenatesToTheWholeText) {
  std::vector<SortedJson> all = cases();
  all.insert(all.end(), expected_["decode"].begin(), expected_["decode"].end());
  DecodeStream stream(*tokenizer_);
  for (const SortedJson& one : all) {
    std::string shown;
    for (const std::int32_t id : one.at("ids").get<Ids>()) {
      const std::string now = stream.push(id);
      EXPECT_TRUE(is_valid_utf8(now));
      shown += now;
    }
    shown += stream.finish();
    EXPECT_EQ(shown, one.at("decoded").get<std::string>()) << one;
  }
}

TEST_P(GoldenTokenizer, PiecesBeforeMergingAreThose) {
  const SortedJson document = SortedJson::parse(text_);
  const bpe::JsonField root(document, GetParam());
  const auto normalizer = bpe::read_normalizer(root.find("normalizer"));
  const bpe::PreTokenizer pre_tokenizer(root.find("pre_tokenizer"));
  Index compared = 0;
  for (const SortedJson& one : expected_["cases"]) {
    if (!one.contains("splits") || one["splits"].is_null()) continue;
    std::string text = bytes_of(one);
    if (normalizer) normalizer->apply(text, true);
    std::vector<std::string> pieces;
    pre_tokenizer.run(text, true, false, [&](std::string_view piece) { pieces.emplace_back(piece); });
    EXPECT_EQ(pieces, one["splits"].get<std::vector<std::string>>()) << text;
    ++compared;
  }
  EXPECT_EQ(compared == 0, std::string_view(GetParam()) == "llama2");
}

/// Texts cut at stable prefixes have the ids of the whole text.
TEST_P(GoldenTokenizer, StablePrefixesEncodeToTheWhole) {
  std::string all;
  for (const SortedJson& one : cases()) all += bytes_of(one) + (all.size() % 3 == 0 ? " " : "\n");
  const Ids expected = tokenizer_->encode(all);
  for (const std::size_t chunk : {1U, 7U, 64U, 1000U}) {
    Ids ids;
    std::string pending;
    bool at_start = true;
    Index cuts = 0;
    for (std::size_t at = 0; at < all.size(); at += chunk) {
      pending += all.substr(at, chunk);
      const std::size_t ready = tokenizer_->stable_prefix(pending);
      if (ready == 0) continue;
      tokenizer_->append_ids(std::string_view(pending).substr(0, ready), at_start, ids);
      at_start = false;
      pending.erase(0, ready);
      ++cuts;
    }
    tokenizer_->append_ids(pending, at_start, ids);
    EXPECT_EQ(ids, expected) << "chunks of " << chunk;
    EXPECT_GT(cuts, 8);
  }
}

TEST_P(GoldenTokenizer, KnowsWhichTokenEndsAText) {
  const std::map<std::string, std::string> ends = {{"llama2", "</s>"},
                                                   {"llama3", "<|end_of_text|>"},
                                                   {"qwen3", "<|endoftext|>"},
                                                   {"smollm2", "<|endoftext|>"}};
  EXPECT_EQ(tokenizer_->end_of_text(), tokenizer_->token_id(ends.at(GetParam())));
}

INSTANTIATE_TEST_SUITE_P(All, GoldenTokenizer, testing::Values("llama2", "llama3", "qwen3", "smollm2"),
                         [](const auto& tokenizer) { return std::string(tokenizer.param); });

TEST(GoldenTokenizerWithTemplate, PutsTheBeginTokenFirst) {
  const fs::path expected_path = kShared / "golden/tokenizers/llama3_with_template.json";
  const std::string text = tokenizer_json("llama3");
  if (text.empty() || !fs::exists(expected_path))
    GTEST_SKIP() << "the tokenizer llama3 is not on this machine";
  const SortedJson expected = SortedJson::parse(read_file(expected_path));
  SortedJson document = SortedJson::parse(text);
  document["post_processor"] = expected["post_processor"];
  const auto tokenizer = parse_tokenizer(document.dump(), "llama3");
  for (const SortedJson& one : expected["cases"]) {
    EXPECT_EQ(tokenizer->encode(one["text"].get<std::string>()), one["ids"].get<Ids>());
    EXPECT_EQ(tokenizer->encode_with_special(one["text"].get<std::string>()),
              one["ids_with_special"].get<Ids>());
  }
}

}  // namespace
}  // namespace cartan::data
