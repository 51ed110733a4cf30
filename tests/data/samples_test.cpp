// JSON lines of instruction data to token files with a mask: which tokens count, and what is refused.
#include <gmock/gmock.h>

#include "bpe_support.hpp"
#include "cartan/core/error.hpp"
#include "cartan/data/inspect.hpp"
#include "cartan/data/token_cache.hpp"
#include "cartan/data/tokenize.hpp"

namespace cartan::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

using Texts = std::vector<std::string>;

class Samples : public testing::Test {
 protected:
  TokenizeCounts run(const std::string& lines, const TokenizeOptions& options = {}) {
    const std::string file = folder.put("in.jsonl", lines);
    return tokenize_files(Texts{file}, folder / "out", *tokenizer, options);
  }
  /// The samples as text, what counts in [], "|" for the end of a text.
  Texts samples() const {
    const IndexedDataset dataset(folder / "out");
    const std::vector<std::int32_t> ids = all_tokens(dataset);
    Texts texts;
    for (Index d = 0; d < dataset.documents(); ++d) {
      const IndexRange range = dataset.document_tokens(d);
      std::string text;
      bool counts = false;
      for (Index t = range.begin; t < range.end; ++t) {
        if (dataset.is_counted(t) != counts) text += counts ? ']' : '[';
        counts = dataset.is_counted(t);
        const std::int32_t id = ids[static_cast<std::size_t>(t)];
        text += id == tokenizer->end_of_text() ? "|" : tokenizer->decode({&id, 1});
      }
      texts.push_back(text + (counts ? "]" : ""));
    }
    return texts;
  }
  std::string refusal(const std::string& lines) {
    return message_of<DataError>([&] { run(lines); });
  }
  TemporaryFolder folder;
  std::unique_ptr<Tokenizer> tokenizer = make_tokenizer("byte");
};

TEST_F(Samples, TheCompletionAndItsEndCount) {
  const auto counts = run(R"({"prompt": "1+1=", "completion": "2"})"
                          "\n\n"
                          R"({"completion": "é", "prompt": "", "source": 7})");
  EXPECT_THAT(samples(), ElementsAre("1+1=[2|]", "[é|]"));
  EXPECT_TRUE(counts.has_mask);
  EXPECT_EQ(counts.documents, 2);
  EXPECT_EQ(counts.tokens, 9);
  EXPECT_EQ(counts.counted, 5);
  EXPECT_THAT(folder.names(), ElementsAre("in.jsonl", "out.bin", "out.idx", "out.mask"));
  EXPECT_EQ(verify(IndexedDataset(folder / "out")).counted_tokens, 5);
}

TEST_F(Samples, ATokenAcrossPromptAndCompletionCounts) {
  tokenizer = tokenizer_of([] {
    SortedJson document = byte_level_document({"a b"});
    document["added_tokens"] = SortedJson::array({added_token(257, "<|end_of_text|>")});
    return document;
  }());
  run(R"({"prompt": "xa", "completion": "b"})");
  EXPECT_THAT(samples(), ElementsAre("x[ab|]"));
}

TEST_F(Samples, ReadyIdsAreTakenAsTheyAre) {
  run(R"({"input_ids": [65, 66, 67], "labels": [-100, 66, -100], "attention_mask": [1, 1, 1]})"
      "\n"
      R"({"input_ids": [68, 256]})");
  EXPECT_THAT(samples(), ElementsAre("A[B]C", "[D|]"));
}

TEST_F(Samples, ChatsGoThroughTheTemplate) {
  SortedJson document = byte_level_document({});
  document["added_tokens"] = {added_token(256, "<|im_start|>"), added_token(257, "<|im_end|>")};
  tokenizer = tokenizer_of(document);
  run(R"({"prompt": "a", "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})",
      {.chat_template = "chatml"});
  EXPECT_THAT(samples(), ElementsAre("<|im_start|>user\na|\n<|im_start|>assistant\n[b|]\n"));
}

TEST_F(Samples, FilesDoNotDependOnThreadsAndChunks) {
  std::string lines;
  for (int i = 0; i < 300; ++i)
    lines += fmt::format("{{\"prompt\": \"{}\", \"completion\": \"{}\"}}\n", std::string(i % 7, 'p'), i);
  run(lines);
  const auto content = [&] {
    return read_file(folder / "out.bin") + read_file(folder / "out.idx") + read_file(folder / "out.mask");
  };
  const std::string expected = content();
  for (const int threads : {1, 3})
    for (const Index chunk : {10, 1000}) {
      run(lines, {.chunk_bytes = chunk, .threads = threads});
      EXPECT_EQ(content(), expected);
    }
}

TEST_F(Samples, LongSamplesInSeveralSequencesKeepTheirMask) {
  run(R"({"prompt": "12345", "completion": "678"})", {.max_sequence = 2});
  EXPECT_THAT(samples(), ElementsAre("12345[678|]"));
  EXPECT_EQ(IndexedDataset(folder / "out").sequences(), 5);
}

TEST_F(Samples, TextOverSamplesTakesTheMaskAway) {
  run(R"({"prompt": "a", "completion": "b"})");
  run(R"({"text": "abc"})");
  EXPECT_FALSE(IndexedDataset(folder / "out").has_mask());
  EXPECT_THAT(folder.names(), ElementsAre("in.jsonl", "out.bin", "out.idx"));
}

TEST_F(Samples, AKeyOfTextMakesTextOfIt) {
  run(R"({"prompt": "a", "completion": "b", "text": "c"})");
  EXPECT_FALSE(IndexedDataset(folder / "out").has_mask());
  run(R"({"prompt": "a", "completion": "b"})", {.json_key = "completion"});
  EXPECT_FALSE(IndexedDataset(folder / "out").has_mask());
}

TEST_F(Samples, FaultsAreNamedWithFileAndLine) {
  const std::string good = R"({"prompt": "a", "completion": "b"})"
                           "\n";
  const auto second = [&](const std::string& line) { return refusal(good + line); };
  EXPECT_THAT(second("{"), AllOf(HasSubstr("in.jsonl line 2"), HasSubstr("not valid JSON")));
  EXPECT_THAT(second("{\"prompt\": \"\xff\"}"),
              AllOf(HasSubstr("in.jsonl line 2"), HasSubstr("not valid JSON")));
  EXPECT_THAT(second("[1]"), HasSubstr("line 2: found a JSON array"));
  EXPECT_THAT(second(R"({"text": "a"})"),
              AllOf(HasSubstr("line 2"), HasSubstr("no sample"), HasSubstr("messages")));
  EXPECT_THAT(second(R"({"prompt": "a"})"), HasSubstr("no sample"));
  EXPECT_THAT(second(R"({"completion": "a"})"), HasSubstr("\"completion\" without \"prompt\""));
  EXPECT_THAT(second(R"({"prompt": 1, "completion": "a"})"), HasSubstr("\"prompt\" is a JSON number"));
  EXPECT_THAT(second(R"({"prompt": "a", "completion": ""})"), HasSubstr("\"completion\" is empty"));
  EXPECT_THAT(second(R"({"prompt": [], "completion": []})"), HasSubstr("write chats as \"messages\""));
  EXPECT_THAT(second(R"({"prompt": "a", "completion": "b", "input_ids": [1]})"), HasSubstr("several forms"));
  EXPECT_THAT(second(R"({"input_ids": []})"), HasSubstr("empty"));
  EXPECT_THAT(second(R"({"input_ids": {}})"), HasSubstr("a JSON object"));
  EXPECT_THAT(second(R"({"input_ids": [1, 257]})"),
              AllOf(HasSubstr("input_ids[1] = 257"), HasSubstr("byte")));
  EXPECT_THAT(second(R"({"input_ids": [-1]})"), HasSubstr("input_ids[0] = -1"));
  EXPECT_THAT(second(R"({"input_ids": [1.5]})"), HasSubstr("input_ids[0] is no whole number"));
  EXPECT_THAT(second(R"({"input_ids": [18446744073709551615]})"), HasSubstr("input_ids[0] is no"));
  EXPECT_THAT(second(R"({"input_ids": [1, 2], "labels": [1]})"), HasSubstr("1 labels for 2 input_ids"));
  EXPECT_THAT(second(R"({"input_ids": [1, 2], "labels": [1, 3]})"),
              HasSubstr("labels[1] = 3, expected -100"));
  EXPECT_THAT(folder.names(), Not(testing::Contains(HasSubstr("out"))));
}

TEST_F(Samples, FaultsOfChatsAreNamed) {
  SortedJson document = byte_level_document({});
  document["added_tokens"] = {added_token(256, "<|im_start|>"), added_token(257, "<|im_end|>")};
  tokenizer = tokenizer_of(document);
  const auto chat = [&](const std::string& messages, const std::string& more = "") {
    return message_of<DataError>(
        [&] { run("{\"messages\": " + messages + more + "}", {.chat_template = "chatml"}); });
  };
  EXPECT_THAT(chat("[]"), HasSubstr("\"messages\" is empty"));
  EXPECT_THAT(chat("{}"), HasSubstr("a JSON object"));
  EXPECT_THAT(chat("[1]"), HasSubstr("messages[0] is a JSON number"));
  EXPECT_THAT(chat(R"([{"content": "a"}])"), HasSubstr("messages[0]: no \"role\""));
  EXPECT_THAT(chat(R"([{"role": "assistant", "content": null}])"), HasSubstr("\"content\" is a JSON null"));
  EXPECT_THAT(chat(R"([{"role": "tool", "content": "a"}])"), HasSubstr("the role \"tool\""));
  EXPECT_THAT(chat(R"([{"role": "user", "content": "a"}])"), HasSubstr("no turn of the assistant"));
  const std::string turn = R"({"role": "assistant", "content": "a"})";
  EXPECT_THAT(chat(R"([{"role": "assistant", "content": "a", "tool_calls": [{}]}])"),
              HasSubstr("\"tool_calls\""));
  EXPECT_THAT(chat("[" + turn + "]", R"(, "tools": [{}])"), HasSubstr("\"tools\""));
  EXPECT_EQ(run("{\"messages\": [" + turn + R"(], "tools": []})", {.chat_template = "chatml"}).documents, 1);
  EXPECT_THAT(message_of<ConfigError>([&] { run("{\"messages\": [" + turn + "]}"); }),
              HasSubstr("data.template = auto"));
}

TEST_F(Samples, SamplesAndTextDoNotMix) {
  const Texts files{folder.put("a.jsonl", R"({"prompt": "a", "completion": "b"})"),
                    folder.put("b.txt", "text")};
  EXPECT_THAT(message_of<DataError>([&] { tokenize_files(files, folder / "out", *tokenizer); }),
              AllOf(HasSubstr("a.jsonl"), HasSubstr("b.txt"), HasSubstr("apart")));
}

TEST_F(Samples, AMaskThatDoesNotBelongIsRefused) {
  run(R"({"prompt": "abcdef", "completion": "b"})");
  const std::string mask = read_file(folder / "out.mask");
  const auto refusal_of = [&](const std::string& content) {
    folder.put("out.mask", content);
    return message_of<DataError>([&] { IndexedDataset(folder / "out"); });
  };
  EXPECT_THAT(refusal_of(mask + "x"), AllOf(HasSubstr("out.mask"), HasSubstr("18 bytes, expected 17")));
  EXPECT_THAT(refusal_of(""), HasSubstr("CARTMASK"));
  EXPECT_THAT(refusal_of("X" + mask.substr(1)), HasSubstr("CARTMASK"));
  std::string version = mask;
  version[8] = 2;
  EXPECT_THAT(refusal_of(version), HasSubstr("mask version 2"));
}

TEST_F(Samples, TokenFilesAreMadeOnceForTheSameContent) {
  const std::string file = folder.put("in.jsonl", R"({"prompt": "a", "completion": "b"})");
  DataConfig config;
  const std::string first = cached_tokens(file, config, folder / "cache", 2);
  EXPECT_TRUE(IndexedDataset(first).has_mask());
  const auto time = std::filesystem::last_write_time(first + ".idx");
  EXPECT_EQ(cached_tokens(file, config, folder / "cache", 1), first);
  EXPECT_EQ(std::filesystem::last_write_time(first + ".idx"), time);
  folder.put("in.jsonl", R"({"prompt": "a", "completion": "c"})");
  const std::string second = cached_tokens(file, config, folder / "cache", 1);
  EXPECT_NE(second, first);
  folder.put("tok/tokenizer.json", byte_level_document({}).dump());
  folder.put("tok/tokenizer_config.json", R"({"eos_token": "a"})");
  config.tokenizer = folder / "tok";
  const std::string third = cached_tokens(file, config, folder / "cache", 1);
  folder.put("tok/tokenizer_config.json", R"({"eos_token": "b"})");
  const std::string fourth = cached_tokens(file, config, folder / "cache", 1);
  config.chat_template = "phi3";
  EXPECT_EQ(
      (std::set<std::string>{second, third, fourth, cached_tokens(file, config, folder / "cache", 1)}.size()),
      4u);
  EXPECT_THROW(cached_tokens(folder / "none.jsonl", config, folder / "cache", 1), MissingError);
}

}  // namespace
}  // namespace cartan::data
