// Text files, folders and JSON lines; what is skipped, what is refused, and that memory stays bounded.
#include "cartan/data/tokenize.hpp"

#include <cstdio>

#include "cartan/core/error.hpp"
#include "data_test_support.hpp"

namespace cartan::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Texts = std::vector<std::string>;

class Tokenize : public testing::Test {
 protected:
  TokenizeCounts run(const Texts& inputs, const TokenizeOptions& options = {}) {
    return tokenize_files(inputs, output / "out", *tokenizer, options);
  }
  /// The documents of the result as text, "|" for an end-of-document id.
  Texts documents() const {
    const IndexedDataset dataset(output / "out");
    const std::vector<std::int32_t> ids = all_tokens(dataset);
    Texts texts;
    for (Index d = 0; d < dataset.documents(); ++d) {
      const IndexRange range = dataset.document_tokens(d);
      texts.emplace_back();
      for (Index t = range.begin; t < range.end; ++t)
        texts.back() += ids[static_cast<std::size_t>(t)] == 256
                            ? '|'
                            : static_cast<char>(ids[static_cast<std::size_t>(t)]);
    }
    return texts;
  }
  TemporaryFolder input, output;
  std::unique_ptr<Tokenizer> tokenizer = make_tokenizer("byte");
};

TEST_F(Tokenize, OneDocumentAFileInTheOrderGiven) {
  const auto counts = run({input.put("b.txt", "second\n"), input.put("a.txt", "first")});
  EXPECT_THAT(documents(), ElementsAre("second\n|", "first|"));
  EXPECT_EQ(counts.documents, 2);
  EXPECT_EQ(counts.tokens, 14);
  EXPECT_EQ(counts.bytes, 12);
  EXPECT_EQ(counts.total_bytes, 12);
  EXPECT_EQ(counts.files, 2);
  EXPECT_EQ(IndexedDataset(output / "out").token_type(), TokenType::u16);
}

TEST_F(Tokenize, EndIdsCanBeLeftOut) {
  run({input.put("a.txt", "ab"), input.put("b.txt", "c")}, {.append_end = false});
  EXPECT_THAT(documents(), ElementsAre("ab", "c"));
}

TEST_F(Tokenize, FoldersAreSortedByPathAndHiddenNamesPassedOver) {
  input.put("z/1.txt", "z1");
  input.put("a/2.txt", "a2");
  input.put("a/10.txt", "a10");
  input.put("B", "upper");
  input.put(".git/config", "hidden");
  input.put("a/.hidden", "hidden");
  std::filesystem::create_symlink("nowhere", input / "dangling");
  run({input.path()});
  EXPECT_THAT(documents(), ElementsAre("upper|", "a10|", "a2|", "z1|"));
}

TEST_F(Tokenize, BinaryAndEmptyFilesAreSkippedAndCounted) {
  input.put("1", "text");
  input.put("2", std::string("\x7f"
                             "ELF\0x",
                             6));
  input.put("3", "");
  input.put("4", "more");
  // The zero byte comes last, after much has been written.
  input.put("5", std::string(100, 'x') + std::string(1, '\0'));
  input.put("6", "end");
  testing::internal::CaptureStderr();
  const auto counts = run({input.path()}, {.max_sequence = 7, .chunk_bytes = 3});
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(documents(), ElementsAre("text|", "more|", "end|"));
  EXPECT_EQ(counts.binary_files, 2);
  EXPECT_EQ(counts.empty_texts, 1);
  EXPECT_EQ(counts.files, 6);
  EXPECT_THAT(log, AllOf(HasSubstr("skipped 2 binary files"), HasSubstr(input / "2")));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1);
}

TEST_F(Tokenize, JsonLinesGiveADocumentEach) {
  const std::string file =
      input.put("a.jsonl", "{\"text\": \"one\", \"id\": 7}\n\n{\"text\": \"\"}\r\n{\"text\":\"\\u00e9\\n\"}");
  const auto counts = run({file});
  EXPECT_THAT(documents(), ElementsAre("one|", "\xC3\xA9\n|"));
  EXPECT_EQ(counts.documents, 2);
  EXPECT_EQ(counts.empty_texts, 1);
}

TEST_F(Tokenize, JsonKeyCanBeChosen) {
  run({input.put("a.json", "{\"content\": \"x\"}\n")}, {.json_key = "content"});
  EXPECT_THAT(documents(), ElementsAre("x|"));
}

TEST_F(Tokenize, JsonFilesInAFolderAreTextUnlessTheyBeginWithAJsonLine) {
  input.put("lines.json", "{\"text\": \"1\"}\n{\"text\": \"2\"}\n");
  input.put("lines.jsonl", "{\"text\": \"3\"}");
  input.put("preset.json", "{\n  \"version\": 3\n}\n");
  input.put("array.json", "[1]");
  run({input.path()});
  EXPECT_THAT(documents(), ElementsAre("[1]|", "1|", "2|", "3|", "{\n  \"version\": 3\n}\n|"));
}

TEST_F(Tokenize, ABadJsonLineIsNamedAndNothingIsLeft) {
  const auto message = [&](std::string_view line) {
    const std::string file = input.put("bad.jsonl", "{\"text\": \"fine\"}\n" + std::string(line));
    return message_of<DataError>([&] { run({file}); });
  };
  const std::string where = input / "bad.jsonl" + " line 2";
  EXPECT_THAT(message("{\"text\": \"cut"), AllOf(HasSubstr(where), HasSubstr("not valid JSON near column")));
  EXPECT_THAT(message("{\"text\": \"\xC3\"}"), AllOf(HasSubstr(where), HasSubstr("not valid JSON")));
  EXPECT_THAT(message(std::string("{\"text\"\0: 1}", 12)), HasSubstr("not valid JSON"));
  EXPECT_THAT(message("{\"text\": 1e999}"), AllOf(HasSubstr(where), HasSubstr("not valid JSON")));
  EXPECT_THAT(message("[1]"), AllOf(HasSubstr(where), HasSubstr("a JSON array")));
  EXPECT_THAT(message("{\"body\": 1, \"id\": 2}"),
              AllOf(HasSubstr("no key \"text\""), HasSubstr("\"body\", \"id\"")));
  EXPECT_THAT(message("{}"), HasSubstr("found none"));
  EXPECT_THAT(message("{\"text\": null}"), AllOf(HasSubstr(where), HasSubstr("\"text\" is a JSON null")));
  EXPECT_THAT(output.names(), IsEmpty());
}

TEST_F(Tokenize, MissingAndUselessInputsAreErrors) {
  EXPECT_THAT(message_of<MissingError>([&] { run({input / "none"}); }), HasSubstr(input / "none"));
  EXPECT_THROW(run({"/dev/null"}), IoError);
  EXPECT_THAT(message_of<DataError>([&] { run({input.path()}); }), HasSubstr("no text in the 0 input files"));
  EXPECT_THAT(message_of<DataError>([&] { run({input.put("empty", "")}); }), HasSubstr("1 empty texts"));
  EXPECT_THAT(output.names(), IsEmpty());
}

TEST_F(Tokenize, PiecesAndLongDocumentsGiveTheSameTokens) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>('a' + i % 26);
  const std::string file = input.put("a", text);
  for (const Index chunk : {1, 7, 999, 1000, 1001}) {
    run({file, file}, {.max_sequence = 100, .chunk_bytes = chunk});
    EXPECT_THAT(documents(), ElementsAre(text + "|", text + "|"));
    const IndexedDataset dataset(output / "out");
    EXPECT_EQ(dataset.sequences(), 22);  // 1001 tokens in sequences of 100
    EXPECT_EQ(dataset.sequence_length(10), 1);
    EXPECT_EQ(dataset.document_sequences(1), (IndexRange{11, 22}));
  }
}

/// Words are ids; a word is known only when the blank after it is seen. For pieces that end inside a word.
class WordTokenizer final : public Tokenizer {
 public:
  std::string_view name() const override { return "word"; }
  Index vocab_size() const override { return 100000; }
  std::int32_t end_of_text() const override { return 0; }
  void append_ids(std::string_view text, bool at_start, std::vector<std::int32_t>& ids) const override {
    if (at_start) ids.push_back(99999);
    std::int32_t length = 0;
    for (const char c : text) {
      if (c != ' ') {
        ++length;
      } else {
        ids.push_back(length);
        length = 0;
      }
    }
    if (length > 0) ids.push_back(length);
  }
  std::size_t stable_prefix(std::string_view text) const override { return text.rfind(' ') + 1; }
  std::optional<std::int32_t> token_id(std::string_view) const override { return std::nullopt; }
  std::unique_ptr<TokenDecoder> decoder(const DecodeOptions&) const override { return nullptr; }
};

TEST_F(Tokenize, TokensThatDependOnWhatFollowsAreNotCut) {
  const std::string file = input.put("a", "the quick brownish fox");
  for (const Index chunk : {1, 2, 5, 100}) {
    tokenize_files(Texts{file}, output / "out", WordTokenizer(), {.chunk_bytes = chunk});
    const IndexedDataset dataset(output / "out");
    EXPECT_EQ(dataset.token_type(), TokenType::i32);
    EXPECT_THAT(all_tokens(dataset), ElementsAre(99999, 3, 5, 8, 3, 0));
  }
}

/// Puts 7 before and 8 after each text; byte tokens, cut anywhere.
class TemplateTokenizer final : public Tokenizer {
 public:
  explicit TemplateTokenizer(std::int32_t end) : end_(end) {}
  std::string_view name() const override { return "template"; }
  Index vocab_size() const override { return 256; }
  std::int32_t end_of_text() const override { return end_; }
  std::span<const std::int32_t> ids_before() const override { return before_; }
  std::span<const std::int32_t> ids_after() const override { return after_; }
  void append_ids(std::string_view text, bool, std::vector<std::int32_t>& ids) const override {
    ids.insert(ids.end(), text.begin(), text.end());
  }
  std::size_t stable_prefix(std::string_view text) const override { return text.size(); }
  std::optional<std::int32_t> token_id(std::string_view) const override { return std::nullopt; }
  std::unique_ptr<TokenDecoder> decoder(const DecodeOptions&) const override { return nullptr; }

 private:
  std::int32_t end_;
  std::vector<std::int32_t> before_{7}, after_{8};
};

TEST_F(Tokenize, TemplateSurroundsEachDocumentOnce) {
  const std::string file = input.put("a.txt", "abc"), lines = input.put("b.jsonl", "{\"text\": \"d\"}\n");
  for (const Index chunk : {1, 2, 100}) {
    tokenize_files(Texts{file, lines}, output / "out", TemplateTokenizer(9), {.chunk_bytes = chunk});
    EXPECT_THAT(all_tokens(IndexedDataset(output / "out")),
                ElementsAre(7, 'a', 'b', 'c', 8, 9, 7, 'd', 8, 9));
  }
  // The template ends the text already.
  tokenize_files(Texts{file}, output / "out", TemplateTokenizer(8));
  EXPECT_THAT(all_tokens(IndexedDataset(output / "out")), ElementsAre(7, 'a', 'b', 'c', 8));
}

TEST_F(Tokenize, FilesDoNotDependOnTheNumberOfThreads) {
  std::string lines, text;
  for (int i = 0; i < 400; ++i) {
    lines += "{\"text\": \"line " + std::to_string(i) + std::string(static_cast<std::size_t>(i % 50), 'x') +
             "\"}\n";
    text += "word " + std::to_string(i * i) + " ";
    if (i % 100 == 0) lines += "\n{\"text\": \"\"}\n";
  }
  input.put("1.jsonl", lines);
  input.put("2.txt", text);
  input.put("3.bin", text + std::string(1, '\0'));
  input.put("4.txt", "");
  input.put("5.txt", text + text);
  const auto tokenize = [&](int threads) {
    const auto counts = tokenize_files(Texts{input.path()}, output / "out", WordTokenizer(),
                                       {.max_sequence = 30, .chunk_bytes = 100, .threads = threads});
    EXPECT_EQ(counts.documents, 402);
    EXPECT_EQ(counts.empty_texts, 5);
    EXPECT_EQ(counts.binary_files, 1);
    return read_file(output / "out.bin") + read_file(output / "out.idx");
  };
  const std::string expected = tokenize(1);
  for (const int threads : {2, 3, 8}) EXPECT_EQ(tokenize(threads), expected) << threads << " threads";
}

TEST_F(Tokenize, TheFirstBadLineIsNamedWithAnyNumberOfThreads) {
  std::string lines;
  for (int i = 1; i <= 500; ++i)
    lines += i == 200 || i == 210 || i == 450 ? "bad\n" : "{\"text\": \"fine\"}\n";
  const std::string file = input.put("bad.jsonl", lines);
  for (const int threads : {1, 4}) {
    const auto message = message_of<DataError>([&] { run({file}, {.chunk_bytes = 64, .threads = threads}); });
    EXPECT_THAT(message, HasSubstr("line 200:"));
  }
  EXPECT_THAT(output.names(), IsEmpty());
}

TEST_F(Tokenize, ReportsProgress) {
  const std::string big = input.put("big", std::string(10 << 20, 'x'));
  std::vector<TokenizeCounts> reports;
  run({big, input.put("small", "y")},
      {.progress = [&](const TokenizeCounts& counts) { reports.push_back(counts); }});
  ASSERT_GE(reports.size(), 4u);
  for (const TokenizeCounts& counts : reports) EXPECT_EQ(counts.total_bytes, (10 << 20) + 1);
  EXPECT_EQ(reports.back().bytes, reports.back().total_bytes);
  EXPECT_LT(reports.front().bytes, 10 << 20);
}

#ifndef CARTAN_SANITIZED
/// The largest resident size so far, in KiB.
Index peak_kib() {
  FILE* status = std::fopen("/proc/self/status", "r");
  char line[256];
  long kib = -1;
  while (status != nullptr && std::fgets(line, sizeof line, status) != nullptr)
    if (std::sscanf(line, "VmHWM: %ld", &kib) == 1) break;
  if (status != nullptr) std::fclose(status);
  return kib;
}

TEST_F(Tokenize, MemoryDoesNotGrowWithTheFile) {
  const std::string file = input / "large";
  FILE* out = std::fopen(file.c_str(), "wb");
  const std::string block(1 << 20, 'x');
  for (int i = 0; i < 24; ++i) std::fwrite(block.data(), 1, block.size(), out);
  std::fclose(out);
  run({input.put("small", block)});
  const Index before = peak_kib();
  run({file});
  EXPECT_LT(peak_kib() - before, 8 * 1024);
}
#endif

}  // namespace
}  // namespace cartan::data
