// Chats against what transformers makes of them with the published templates (golden/chat/make.py).
#include <cstdlib>

#include "cartan/core/file.hpp"
#include "cartan/data/chat_template.hpp"
#include "data/bpe/json_field.hpp"
#include "data_test_support.hpp"

namespace cartan::data {
namespace {

namespace fs = std::filesystem;
using bpe::SortedJson;

const fs::path kGolden = fs::path(CARTAN_GOLDEN_DIR) / "chat";
const fs::path kTokenizers = fs::path(CARTAN_SOURCE_DIR) / "../shared/tokenizers";

/// A tokenizer.json beside the checkout; nothing where it is not there.
std::optional<SortedJson> document_of(const std::string& name) {
  const fs::path packed = kTokenizers / (name + ".tokenizer.json.gz");
  if (!fs::exists(packed)) return std::nullopt;
  const TemporaryFolder folder;
  const std::string command = "gzip -dc '" + packed.string() + "' > '" + (folder / "tokenizer.json") + "'";
  if (std::system(command.c_str()) != 0) return std::nullopt;
  return SortedJson::parse(read_file(folder / "tokenizer.json"));
}

/// As golden/chat/make.py does it.
void add_tokens_of_phi3(SortedJson& document) {
  int id = 32000;
  for (const char* content : {"<|endoftext|>", "<|assistant|>", "<|system|>", "<|end|>", "<|user|>"}) {
    document["added_tokens"].push_back({{"id", id},
                                        {"content", content},
                                        {"single_word", false},
                                        {"lstrip", false},
                                        {"rstrip", id != 32000},
                                        {"normalized", false},
                                        {"special", true}});
    ++id;
  }
}

class GoldenChat : public testing::TestWithParam<const char*> {};

TEST_P(GoldenChat, IdsAreThoseOfTransformersAndAnswersCount) {
  const std::string family = GetParam();
  const SortedJson expected = SortedJson::parse(read_file(kGolden / "expected.json"))[family];
  std::optional<SortedJson> document = document_of(expected["tokenizer"]);
  if (!document) GTEST_SKIP() << "the tokenizer of " << family << " is not on this machine";
  if (family == "phi3") add_tokens_of_phi3(*document);
  const auto tokenizer = parse_tokenizer(document->dump(), family);
  const auto name_of = [&](const char* key) {
    return expected[key].is_null() ? std::string() : expected[key].get<std::string>();
  };
  const ChatTemplate chat_template = recognize_chat_template(read_file(kGolden / (family + ".jinja")),
                                                             name_of("bos"), name_of("eos"), family);
  const ChatEncoder encoder(*tokenizer, chat_template);
  for (const SortedJson& one : expected["cases"]) {
    std::vector<ChatTurn> turns;
    for (const SortedJson& message : one["messages"]) turns.push_back({message["role"], message["content"]});
    std::vector<std::int32_t> ids;
    std::vector<std::uint8_t> counted;
    encoder.append_ids(turns, ids, counted);
    EXPECT_EQ(ids, one["ids"].get<std::vector<std::int32_t>>()) << one["messages"];
    EXPECT_EQ(counted, one["counted"].get<std::vector<std::uint8_t>>()) << one["messages"];
  }
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenChat, testing::Values("qwen2", "llama3", "phi3"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace cartan::data
