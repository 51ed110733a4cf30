#include "cli/prompts.hpp"

#include <gtest/gtest.h>

#include "cartan/core/error.hpp"

namespace cartan::cli {
namespace {

using Ids = std::vector<std::int32_t>;

class PromptsTest : public ::testing::Test {
 protected:
  std::vector<Prompt> read(const std::string& content) const {
    return prompts_of_json_lines(content, "in.jsonl", *tokenizer_, defaults_);
  }
  std::string refusal(const std::string& content) const {
    try {
      read(content);
    } catch (const DataError& error) {
      return error.what();
    }
    return "no error";
  }

  std::unique_ptr<data::Tokenizer> tokenizer_ = data::make_tokenizer("byte");
  PromptDefaults defaults_{{7, {0.5, 3, 0.75}, 1.5, 11, {256}}, {"\n\n"}};
};

TEST_F(PromptsTest, JsonLinesSayWhatDiffersFromTheOptions) {
  const auto prompts = read(
      "{\"prompt\": \"ab\"}\n"
      "\n"
      "{\"ids\": [1, 300], \"id\": {\"n\": 5}, \"max_new_tokens\": 2, \"temperature\": 0, \"top_k\": 9, "
      "\"top_p\": 1, \"repetition_penalty\": 1, \"seed\": 18446744073709551615, \"stop\": [\"x y\", "
      "\"z\"]}\r\n"
      "{\"prompt\": \"\", \"stop\": []}");
  ASSERT_EQ(prompts.size(), 3u);
  EXPECT_EQ(prompts[0].request.prompt, (Ids{'a', 'b'}));
  EXPECT_EQ(prompts[0].text, "ab");
  EXPECT_EQ(prompts[0].request.name, "in.jsonl:1");
  EXPECT_TRUE(prompts[0].id.is_null());
  const infer::GenerateOptions& usual = prompts[0].request.options;
  EXPECT_EQ(usual.max_new_tokens, 7);
  EXPECT_EQ(usual.sampling.temperature, 0.5);
  EXPECT_EQ(usual.repetition_penalty, 1.5);
  EXPECT_EQ(usual.seed, 11u);
  EXPECT_EQ(prompts[0].stops, defaults_.stops);

  EXPECT_EQ(prompts[1].request.prompt, (Ids{1, 300}));
  EXPECT_EQ(prompts[1].request.name, "in.jsonl:3");
  EXPECT_EQ(prompts[1].id, Json::parse("{\"n\": 5}"));
  const infer::GenerateOptions& own = prompts[1].request.options;
  EXPECT_EQ(own.max_new_tokens, 2);
  EXPECT_EQ(own.sampling.temperature, 0);
  EXPECT_EQ(own.sampling.top_k, 9);
  EXPECT_EQ(own.sampling.top_p, 1);
  EXPECT_EQ(own.repetition_penalty, 1);
  EXPECT_EQ(own.seed, 18446744073709551615u);
  EXPECT_EQ(own.end_tokens, Ids{256});
  EXPECT_EQ(prompts[1].stops, (std::vector<std::string>{"x y", "z"}));
  EXPECT_TRUE(prompts[2].stops.empty());
}

TEST_F(PromptsTest, WhatIsWrongInALineIsNamed) {
  EXPECT_EQ(refusal("{\"prompt\": \"a\"}\n{\"prompt\": \"b\", \"temprature\": 1}"),
            "in.jsonl:2: unknown key \"temprature\" (did you mean temperature?)");
  EXPECT_EQ(refusal("{\"zzzzzzzz\": 1}"),
            "in.jsonl:1: unknown key \"zzzzzzzz\": use id, ids, max_new_tokens, prompt, repetition_penalty, "
            "seed, stop, temperature, top_k, top_p");
  EXPECT_EQ(refusal("{}"), "in.jsonl:1: expected either \"prompt\" or \"ids\"");
  EXPECT_EQ(refusal("{\"prompt\": \"a\", \"ids\": [1]}"),
            "in.jsonl:1: expected either \"prompt\" or \"ids\"");
  EXPECT_EQ(refusal("[1]"), "in.jsonl:1: expected an object, as {\"prompt\": \"...\"}");
  EXPECT_NE(refusal("{\"prompt\": \"a\"}\n{\"prompt\": "), "no error");
  EXPECT_EQ(refusal("{\"prompt\": \"a\"}\n{\"prompt\": ").substr(0, 11), "in.jsonl:2:");
  EXPECT_EQ(refusal("\n\n"), "in.jsonl: no prompt");
}

TEST_F(PromptsTest, ValuesThatCannotBeAreNamed) {
  const auto of = [&](const std::string& entry) { return refusal("{\"prompt\": \"a\", " + entry + "}"); };
  EXPECT_EQ(of("\"max_new_tokens\": 0"),
            "in.jsonl:1: \"max_new_tokens\" is 0, expected a whole number, at least 1");
  EXPECT_EQ(of("\"max_new_tokens\": 2.5"),
            "in.jsonl:1: \"max_new_tokens\" is 2.5, expected a whole number, at least 1");
  EXPECT_EQ(of("\"max_new_tokens\": 18446744073709551615"),
            "in.jsonl:1: \"max_new_tokens\" is 18446744073709551615, expected a whole number, at least 1");
  EXPECT_EQ(of("\"top_k\": -1"), "in.jsonl:1: \"top_k\" is -1, expected a whole number, at least 0");
  EXPECT_EQ(of("\"temperature\": -0.5"),
            "in.jsonl:1: \"temperature\" is -0.5, expected a number of at least 0");
  EXPECT_EQ(of("\"temperature\": \"hot\""),
            "in.jsonl:1: \"temperature\" is \"hot\", expected a number of at least 0");
  EXPECT_EQ(of("\"top_p\": 0"), "in.jsonl:1: \"top_p\" is 0, expected a number above 0 and at most 1");
  EXPECT_EQ(of("\"top_p\": 1.5"), "in.jsonl:1: \"top_p\" is 1.5, expected a number above 0 and at most 1");
  EXPECT_EQ(of("\"repetition_penalty\": 0"),
            "in.jsonl:1: \"repetition_penalty\" is 0, expected a number above 0");
  EXPECT_EQ(of("\"seed\": -3"), "in.jsonl:1: \"seed\" is -3, expected a whole number, at least 0");
  EXPECT_EQ(of("\"stop\": [\"a\", \"\"]"),
            "in.jsonl:1: \"stop\" is [\"a\",\"\"], expected a text that is not empty, or a list of them");
  EXPECT_EQ(refusal("{\"prompt\": 5}"), "in.jsonl:1: \"prompt\" is 5, expected a text");
  EXPECT_EQ(refusal("{\"ids\": [1, 4294967296]}"),
            "in.jsonl:1: \"ids\" is [1,4294967296], expected a list of token ids");
}

TEST_F(PromptsTest, LinesAndListsHaveNumbers) {
  const auto lines = prompts_of_lines("a\n\nb\n", "in.txt", *tokenizer_, defaults_);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_TRUE(lines[1].request.prompt.empty());
  EXPECT_EQ(lines[2].request.name, "in.txt:3");
  const auto lists = prompts_of_id_lists("[[1], [], [2, 3]]", "in.json", defaults_);
  ASSERT_EQ(lists.size(), 3u);
  EXPECT_EQ(lists[2].request.prompt, (Ids{2, 3}));
  EXPECT_EQ(lists[1].request.name, "in.json: list 1");
  EXPECT_THROW(prompts_of_id_lists("[[1], 2]", "in.json", defaults_), DataError);
  EXPECT_THROW(prompts_of_id_lists("[[1], [99999999999]]", "in.json", defaults_), DataError);
  EXPECT_THROW(prompts_of_lines("", "in.txt", *tokenizer_, defaults_), DataError);
}

}  // namespace
}  // namespace cartan::cli
