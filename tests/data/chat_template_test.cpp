// Chats to ids with a tokenizer of bytes and a few tokens; which Jinja texts are recognized. That the ids are
// those of transformers is shown in golden_chat_test and tests/peers.
#include "cartan/data/chat_template.hpp"

#include "bpe_support.hpp"
#include "cartan/core/error.hpp"

namespace cartan::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<std::string> kTokens = {
    "<|im_start|>",      "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>",
    "<|end_header_id|>", "<|eot_id|>", "<|system|>",        "<|user|>",
    "<|assistant|>",     "<|end|>",    "<|endoftext|>",     "<plain>"};
constexpr std::int32_t kFirst = 257;  // after the bytes and "\n\n"

/// Bytes, "\n\n" as id 256, and the tokens; of Phi-3's, those that take white space along do.
SortedJson document() {
  SortedJson json = byte_level_document({"\u010A \u010A"});
  for (std::size_t i = 0; i < kTokens.size(); ++i) {
    const bool takes_space = i >= 6 && i <= 9;
    json["added_tokens"].push_back(
        added_token(kFirst + static_cast<std::int32_t>(i), kTokens[i],
                    {{"rstrip", takes_space}, {"special", kTokens[i] != "<plain>"}}));
  }
  return json;
}

class Chat : public testing::Test {
 protected:
  /// Ids as text: tokens by name, what counts in [].
  std::string show(const ChatTemplate& chat_template, const std::vector<ChatTurn>& turns) {
    ChatEncoder(*tokenizer, chat_template).append_ids(turns, ids, counted);
    EXPECT_EQ(ids.size(), counted.size());
    std::string text;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (counted[i] != (i > 0 ? counted[i - 1] : 0)) text += counted[i] != 0 ? '[' : ']';
      text += tokenizer->decode({&ids[i], 1});
    }
    return text + (!counted.empty() && counted.back() != 0 ? "]" : "");
  }
  std::unique_ptr<Tokenizer> tokenizer = tokenizer_of(document());
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> counted;
};

const std::vector<ChatTurn> kChat = {{"system", "Be  brief. "},
                                     {"user", "Hi\n"},
                                     {"assistant", "Yes."},
                                     {"user", "No"},
                                     {"assistant", " ok "}};

TEST_F(Chat, ChatmlCountsAnswersAndTheirEnds) {
  EXPECT_EQ(show(chat_template_of("chatml"), kChat),
            "<|im_start|>system\nBe  brief. <|im_end|>\n<|im_start|>user\nHi\n<|im_end|>\n"
            "<|im_start|>assistant\n[Yes.<|im_end|>]\n<|im_start|>user\nNo<|im_end|>\n"
            "<|im_start|>assistant\n[ ok <|im_end|>]\n");
  EXPECT_EQ(ids.front(), kFirst);
}

TEST_F(Chat, Llama3BeginsOnceAndTrims) {
  EXPECT_EQ(show(chat_template_of("llama3"), kChat),
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe  brief.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n[Yes.<|eot_id|>]"
            "<|start_header_id|>user<|end_header_id|>\n\nNo<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n[ok<|eot_id|>]");
}

TEST_F(Chat, TokensOfPhi3TakeWhiteSpaceAlong) {
  EXPECT_EQ(show(chat_template_of("phi3"), kChat),
            "<|system|>Be  brief. <|end|><|user|>Hi\n<|end|><|assistant|>[Yes.<|end|>]<|user|>No<|end|>"
            "<|assistant|>[ok <|end|>]<|endoftext|>");
}

TEST_F(Chat, ATokenAcrossTheEndOfTheHeadCounts) {
  show(chat_template_of("chatml"), {{"user", "a"}, {"assistant", "\n"}});
  EXPECT_THAT(std::vector<std::int32_t>(ids.end() - 3, ids.end()), ElementsAre(256, kFirst + 1, '\n'));
  EXPECT_THAT(std::vector<std::uint8_t>(counted.end() - 4, counted.end()), ElementsAre(0, 1, 1, 0));
}

/// Decoders of SentencePiece's kind hold bytes back until a character is complete.
TEST_F(Chat, TheHeadOfATurnEndsAmongBytesToo) {
  SortedJson json = byte_fallback_document({"\u2581", "a", "s", "i", "t", "n", "\u2581a", "y"}, {"\u2581 a"});
  json["added_tokens"].push_back(added_token(400, "<|im_start|>"));
  json["added_tokens"].push_back(added_token(401, "<|im_end|>"));
  tokenizer = tokenizer_of(json);
  for (const std::string answer : {"y", "\u4F60y", "\u4F60", "\n", ""}) {
    ids.clear();
    counted.clear();
    ChatEncoder(*tokenizer, chat_template_of("chatml"))
        .append_ids(std::vector<ChatTurn>{{"assistant", answer}}, ids, counted);
    // U+2581 a, s s i s t a n t and a line feed are the head.
    const auto own = static_cast<Index>(answer == "y" ? 1 : answer.size());
    EXPECT_EQ(std::find(counted.begin(), counted.end(), 1) - counted.begin(), 11) << answer;
    EXPECT_EQ(std::count(counted.begin(), counted.end(), 1), own + 1) << answer;
  }
}

TEST_F(Chat, WhatATurnSpellsIsNoSpecialToken) {
  show(chat_template_of("chatml"), {{"user", "<|im_end|><plain>"}, {"assistant", "<|im_start|>"}});
  EXPECT_EQ(std::count(ids.begin(), ids.end(), kFirst), 2);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), kFirst + 1), 2);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), kFirst + 11), 1);  // not a special one: part of the language
}

TEST_F(Chat, ADefaultSystemTurnComesWhereNoneIs) {
  ChatTemplate chat_template = chat_template_of("chatml");
  chat_template.system = "Help.";
  EXPECT_EQ(show(chat_template, {{"user", "a"}}),
            "<|im_start|>system\nHelp.<|im_end|>\n<|im_start|>user\na<|im_end|>\n");
  ids.clear();
  counted.clear();
  EXPECT_EQ(show(chat_template, {{"system", ""}, {"user", "a"}}),
            "<|im_start|>system\n<|im_end|>\n<|im_start|>user\na<|im_end|>\n");
}

TEST_F(Chat, AMissingTokenIsNamed) {
  const auto bytes = make_tokenizer("byte");
  EXPECT_THAT(message_of<ConfigError>([&] { ChatEncoder(*bytes, chat_template_of("llama3")); }),
              AllOf(HasSubstr("llama3"), HasSubstr("<|begin_of_text|>"), HasSubstr("tokenizer byte")));
  const ChatEncoder encoder(*tokenizer, chat_template_of("phi3"));
  EXPECT_EQ(encoder.why_not_role("user"), "");
  EXPECT_THAT(encoder.why_not_role("tool"), AllOf(HasSubstr("\"tool\""), HasSubstr("phi3")));
}

ChatTemplate recognize(const std::string& jinja) {
  return recognize_chat_template(jinja, "<s>", "</s>", "the file");
}

TEST(ChatTemplates, PublishedTextsAreRecognized) {
  const ChatTemplate qwen2 = recognize(
      "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ "
      "'<|im_start|>system\\nYou are \"it\".<|im_end|>\\n' }}{% endif %}{{'<|im_start|>' + message['role'] + "
      "'\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}");
  ChatTemplate expected = chat_template_of("chatml");
  EXPECT_NE(qwen2, expected);
  expected.system = "You are \"it\".";
  EXPECT_EQ(qwen2, expected);
  EXPECT_EQ(recognize("{{'<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n'}}"),
            chat_template_of("chatml"));
  expected = chat_template_of("llama3");
  expected.begin = "<s>";
  EXPECT_EQ(
      recognize("'<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | "
                "trim + '<|eot_id|>' bos_token"),
      expected);
  expected = chat_template_of("phi3");
  expected.end = "</s>";
  EXPECT_EQ(recognize("'<|user|>\\n' '<|end|>\\n' '<|assistant|>\\n' {{ eos_token }}"), expected);
}

TEST(ChatTemplates, OthersAreRefusedByWhatTheyLookLike) {
  const auto refusal = [](const std::string& jinja) {
    return message_of<DataError>([&] { recognize(jinja); });
  };
  EXPECT_THAT(
      refusal("[INST] {{ content }} [/INST]"),
      AllOf(HasSubstr("the file"), HasSubstr("none that is known"), HasSubstr("data.template = chatml")));
  EXPECT_THAT(refusal("<|im_start|> <|im_end|> <think>"), AllOf(HasSubstr("chatml"), HasSubstr("Qwen3")));
  EXPECT_THAT(refusal("<|im_start|> <|im_sep|> <|im_end|>"), HasSubstr("Phi-4"));
  EXPECT_THAT(refusal("<|start_header_id|> <|eot_id|> Cutting Knowledge Date"), HasSubstr("Llama 3.1"));
  EXPECT_THAT(refusal("<|start_header_id|> <|eot_id|> content.split('x')"), HasSubstr("rewrites"));
  EXPECT_THAT(refusal("<|im_start|> <|im_end|> eos_token"), HasSubstr("eos_token"));
  EXPECT_THAT(refusal("<|im_start|>system\\nYou \xff trim<|im_end|>"), HasSubstr("not UTF-8"));
}

TEST(ChatTemplates, AutoLooksBesideTheTokenizer) {
  TemporaryFolder folder;
  const std::string spec = folder.put("tokenizer.json", "{}");
  EXPECT_THAT(message_of<ConfigError>([] { resolve_chat_template("auto", "byte"); }),
              HasSubstr("tokenizer byte"));
  EXPECT_THAT(message_of<ConfigError>([&] { resolve_chat_template("auto", spec); }),
              AllOf(HasSubstr("tokenizer_config.json"), HasSubstr("chatml")));
  EXPECT_EQ(resolve_chat_template("phi3", spec), chat_template_of("phi3"));
  folder.put("tokenizer_config.json", R"({"bos_token": {"content": "<s>"}, "eos_token": null,
    "chat_template": "{{ bos_token }}<|im_start|>{{ message['role'] }}\n<|im_end|>"})");
  const ChatTemplate found = resolve_chat_template("auto", folder.path());
  EXPECT_EQ(found.family, ChatTemplate::Family::chatml);
  EXPECT_EQ(found.begin, "<s>");
  folder.put("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "x"},
    {"name": "default", "template": "<|user|><|assistant|><|end|>"}]})");
  EXPECT_EQ(resolve_chat_template("auto", spec).family, ChatTemplate::Family::phi3);
  folder.put("chat_template.jinja", "<|im_start|><|im_end|>");
  EXPECT_EQ(resolve_chat_template("auto", spec).family, ChatTemplate::Family::chatml);
  folder.put("chat_template.jinja", "other");
  EXPECT_THAT(message_of<DataError>([&] { resolve_chat_template("auto", spec); }),
              HasSubstr("chat_template.jinja"));
  folder.put("tokenizer_config.json", "{");
  EXPECT_THROW(resolve_chat_template("auto", spec), DataError);
  EXPECT_THROW(resolve_chat_template("vicuna", spec), ConfigError);
}

}  // namespace
}  // namespace cartan::data
