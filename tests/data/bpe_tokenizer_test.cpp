// Whole tokenizers from small tokenizer.json files: models, added tokens, templates, ends, cuts, hostile
// inputs.
#include <random>
#include <thread>

#include "bpe_support.hpp"
#include "cartan/core/error.hpp"
#include "cartan/data/utf8.hpp"

namespace cartan::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const SortedJson kLlama3Split = {
    {"type", "Split"},
    {"pattern",
     {{"Regex",
       R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}}},
    {"behavior", "Isolated"},
    {"invert", false}};

const char* const kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

TEST(BpeTokenizer, MergesByRankInsidePieces) {
  const auto tokenizer = tokenizer_of(byte_level_document({"h e", "l l", "he ll", "o \u0120"}));
  EXPECT_EQ(tokenizer->encode("hello he"), (Ids{258, 'o', ' ', 256}));  // "o " is never in one piece
  EXPECT_EQ(tokenizer->vocab_size(), 260);
  EXPECT_EQ(tokenizer->decode(Ids{258, 'o', ' ', 256}), "hello he");
  EXPECT_EQ(tokenizer->encode(""), Ids{});
  EXPECT_EQ(tokenizer->token_id("\u0120"), ' ');
  EXPECT_EQ(tokenizer->token_id("nothing"), std::nullopt);
}

TEST(BpeTokenizer, PieceThatIsATokenIsTakenWholeOnlyWhereMergesAreIgnored) {
  SortedJson document = byte_level_document({"a b", "b c", "bc d"});
  document["model"]["vocab"]["abcd"] = 259;
  EXPECT_EQ(tokenizer_of(document)->encode("abcd"), (Ids{256, 'c', 'd'}));
  document["model"]["ignore_merges"] = true;
  EXPECT_EQ(tokenizer_of(document)->encode("abcd"), (Ids{259}));
  EXPECT_EQ(tokenizer_of(document)->encode("abcdd"), (Ids{256, 'c', 'd', 'd'}));
}

TEST(BpeTokenizer, DropsBytesThatTheVocabularyLacks) {
  SortedJson document = byte_level_document({"a b"});
  document["model"]["vocab"].erase(bpe::byte_level_character(7));
  EXPECT_EQ(tokenizer_of(document)->encode("a\ab"), (Ids{'a', 'b'}));  // three pieces
  document["pre_tokenizer"]["use_regex"] = false;
  EXPECT_EQ(tokenizer_of(document)->encode("a\ab"), (Ids{256}));  // dropped before merging
}

TEST(BpeTokenizer, SentencePieceStyle) {
  const auto tokenizer =
      tokenizer_of(byte_fallback_document({"\u2581", "a", "b", "\u2581a", "\u2581ab", "\u2581\u2581"},
                                          {"\u2581 a", "\u2581a b", "\u2581 \u2581"}));
  const std::int32_t mark = 259, a = 260, b = 261, mark_a = 262, mark_ab = 263, marks = 264;
  EXPECT_EQ(tokenizer->encode("ab"), (Ids{mark_ab}));
  EXPECT_EQ(tokenizer->encode("ab ab"), (Ids{mark_ab, mark_ab}));
  EXPECT_EQ(tokenizer->encode("b  a"), (Ids{mark, b, mark, mark_a}));
  EXPECT_EQ(tokenizer->encode("  b"), (Ids{marks, mark, b}));
  EXPECT_EQ(tokenizer->encode("\u00E9"), (Ids{mark, 3 + 0xC3, 3 + 0xA9}));
  EXPECT_EQ(tokenizer->encode("a</s>a"), (Ids{mark_a, 2, mark_a}));  // each stretch gets its own mark
  EXPECT_EQ(tokenizer->decode(Ids{mark_ab, mark_ab}), "ab ab");
  EXPECT_EQ(tokenizer->decode(Ids{mark_ab, mark_ab}, {.at_start = false}), " ab ab");
  EXPECT_EQ(tokenizer->decode(Ids{1, mark_a, 2}), "<s> a</s>");
  EXPECT_EQ(tokenizer->decode(Ids{1, mark_a, 2}, {.skip_special = true}), "a");
  EXPECT_EQ(tokenizer->decode(Ids{a, 3 + 0xC3, 3 + 0xA9, b, 3 + 0xC3}), "a\u00E9b\uFFFD");
  EXPECT_EQ(tokenizer->end_of_text(), 2);
}

TEST(BpeTokenizer, UnknownCharactersAreFusedWhereAsked) {
  SortedJson model = bpe_model({"<unk>", "a"}, {});
  EXPECT_EQ(tokenizer_of(tokenizer_document(model))->encode("axya"), (Ids{1, 1}));
  model["unk_token"] = "<unk>";
  EXPECT_EQ(tokenizer_of(tokenizer_document(model))->encode("axyaz"), (Ids{1, 0, 0, 1, 0}));
  model["fuse_unk"] = true;
  EXPECT_EQ(tokenizer_of(tokenizer_document(model))->encode("axyaz"), (Ids{1, 0, 1, 0}));
}

TEST(BpeTokenizer, BytesThatAreNoUtf8CountAsReplacementCharacters) {
  const auto tokenizer = tokenizer_of(byte_level_document({}));
  EXPECT_EQ(tokenizer->encode("a\xFFz"), (Ids{'a', 0xEF, 0xBF, 0xBD, 'z'}));
}

TEST(AddedTokens, AreFoundBeforeAnythingElse) {
  SortedJson document = byte_level_document({});
  document["added_tokens"] = {added_token(256, "<a>"), added_token(257, "<a>b"),
                              added_token(258, "<x>", {{"lstrip", true}}),
                              added_token(259, "<y>", {{"rstrip", true}}),
                              added_token(260, "word", {{"single_word", true}, {"special", false}})};
  const auto tokenizer = tokenizer_of(document);
  EXPECT_EQ(tokenizer->vocab_size(), 261);
  EXPECT_EQ(tokenizer->encode("<a><a>b<a"), (Ids{256, 257, '<', 'a'}));  // the longest
  EXPECT_EQ(tokenizer->encode("1 \n<x> 2"), (Ids{'1', 258, ' ', '2'}));
  EXPECT_EQ(tokenizer->encode("1 <y> \n2"), (Ids{'1', ' ', 259, '2'}));
  EXPECT_EQ(tokenizer->encode("<y> <x>"), (Ids{259, 258}));
  EXPECT_EQ(tokenizer->encode("word words \u00E9word word_ (word)").size(), 1U + 6 + 7 + 6 + 4);
  EXPECT_EQ(tokenizer->decode(Ids{256, 'a', 260}), "<a>aword");
  EXPECT_EQ(tokenizer->decode(Ids{256, 'a', 260}, {.skip_special = true}), "aword");
  EXPECT_THAT(message_of<DataError>([&] { tokenizer->decode(Ids{261}); }), HasSubstr("261"));
  EXPECT_THROW(tokenizer->decode(Ids{-1}), DataError);
}

TEST(AddedTokens, CanBeLookedForInNormalizedText) {
  SortedJson document = byte_level_document({});
  document["normalizer"] = {{"type", "Lowercase"}};
  document["added_tokens"] = {added_token(256, "ABC", {{"normalized", true}}), added_token(257, "XYZ")};
  const auto tokenizer = tokenizer_of(document);
  EXPECT_EQ(tokenizer->encode("aBcXYZxyz"), (Ids{256, 257, 'x', 'y', 'z'}));
}

TEST(PostProcessor, TemplateSurroundsTheText) {
  SortedJson document = byte_level_document({});
  document["added_tokens"] = {added_token(256, "<s>"), added_token(257, "</s>")};
  document["post_processor"] = {
      {"type", "Sequence"},
      {"processors",
       {{{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", false}, {"use_regex", true}},
        {{"type", "TemplateProcessing"},
         {"single",
          {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
           {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
           {{"SpecialToken", {{"id", "</s>"}, {"type_id", 0}}}}}},
         {"pair", SortedJson::array()},
         {"special_tokens",
          {{"<s>", {{"id", "<s>"}, {"ids", {256}}, {"tokens", {"<s>"}}}},
           {"</s>", {{"id", "</s>"}, {"ids", {257}}, {"tokens", {"</s>"}}}}}}}}}};
  const auto tokenizer = tokenizer_of(document);
  EXPECT_THAT(tokenizer->ids_before(), ElementsAre(256));
  EXPECT_THAT(tokenizer->ids_after(), ElementsAre(257));
  EXPECT_EQ(tokenizer->encode("a"), (Ids{'a'}));
  EXPECT_EQ(tokenizer->encode_with_special("a"), (Ids{256, 'a', 257}));
  document["post_processor"] = {{"type", "RobertaProcessing"},
                                {"sep", {"</s>", 257}},
                                {"cls", {"<s>", 256}},
                                {"trim_offsets", true},
                                {"add_prefix_space", false}};
  EXPECT_EQ(tokenizer_of(document)->encode_with_special("a"), (Ids{256, 'a', 257}));
}

TEST(MakeTokenizer, ReadsAFileOrAFolderAndTheFilesBesideIt) {
  const TemporaryFolder folder;
  SortedJson document = byte_level_document({});
  document["added_tokens"] = {added_token(256, "<one>"), added_token(257, "<two>")};
  const std::string file = folder.put("tokenizer.json", document.dump());
  EXPECT_EQ(make_tokenizer(file)->vocab_size(), 258);
  EXPECT_EQ(make_tokenizer(folder.path())->name(), folder.path());
  EXPECT_THAT(message_of<ConfigError>([&] { make_tokenizer(file)->end_of_text(); }),
              AllOf(HasSubstr(file), HasSubstr("eos_token")));
  const auto end = [&] { return make_tokenizer(file)->end_of_text(); };
  folder.put("config.json", R"({"eos_token_id": 255})");
  EXPECT_EQ(end(), 255);
  folder.put("generation_config.json", R"({"eos_token_id": [256, 257]})");
  EXPECT_EQ(end(), 256);
  folder.put("tokenizer_config.json", R"({"eos_token": null})");
  EXPECT_EQ(end(), 256);
  folder.put("tokenizer_config.json", R"({"eos_token": {"content": "<two>"}})");
  EXPECT_EQ(end(), 257);
  folder.put("tokenizer_config.json", R"({"eos_token": "<one>"})");
  EXPECT_EQ(end(), 256);
  folder.put("tokenizer_config.json", R"({"eos_token": "<three>"})");
  EXPECT_THAT(message_of<DataError>([&] { end(); }),
              AllOf(HasSubstr("tokenizer_config.json"), HasSubstr("<three>")));
  folder.put("tokenizer_config.json", "{");
  EXPECT_THAT(message_of<DataError>([&] { end(); }), HasSubstr("tokenizer_config.json"));
  const TemporaryFolder empty;
  EXPECT_THAT(message_of<MissingError>([&] { make_tokenizer(empty.path()); }), HasSubstr("tokenizer.json"));
  EXPECT_THROW(make_tokenizer(empty / "tokenizer.json"), MissingError);
}

/// What a change to a good document is answered with.
std::string complaint(const std::function<void(SortedJson&)>& change) {
  SortedJson document = byte_fallback_document({"\u2581", "a", "b", "ab"}, {"a b"});
  document["post_processor"] = {{"type", "BertProcessing"}, {"sep", {"</s>", 2}}, {"cls", {"<s>", 1}}};
  change(document);
  const std::string message = message_of<DataError>([&] { tokenizer_of(document); });
  EXPECT_THAT(message, HasSubstr("tokenizer.json: "));
  EXPECT_THAT(message, testing::Not(HasSubstr("\n")));
  return message;
}

TEST(DamagedTokenizer, IsRefusedWithItsPlace) {
  using J = SortedJson;
  EXPECT_THAT(complaint([](J& d) { d.erase("model"); }), HasSubstr("\"model\" is missing"));
  EXPECT_THAT(complaint([](J& d) { d["surprise"] = 1; }), HasSubstr("\"surprise\" is not known"));
  EXPECT_THAT(complaint([](J& d) { d["version"] = "2.0"; }), HasSubstr("version 2.0"));
  EXPECT_THAT(complaint([](J& d) { d["model"]["type"] = "Unigram"; }),
              HasSubstr("model.type: the model Unigram"));
  EXPECT_THAT(complaint([](J& d) { d["model"]["surprise"] = 1; }), HasSubstr("model: the key \"surprise\""));
  EXPECT_THAT(complaint([](J& d) { d["model"]["dropout"] = 0.1; }), HasSubstr("model.dropout"));
  EXPECT_THAT(complaint([](J& d) { d["model"]["end_of_word_suffix"] = "</w>"; }),
              HasSubstr("model.end_of_word_suffix"));
  EXPECT_THAT(complaint([](J& d) { d["model"]["unk_token"] = "<none>"; }), HasSubstr("model.unk_token"));
  EXPECT_THAT(complaint([](J& d) { d["model"]["vocab"] = J::array(); }), HasSubstr("model.vocab"));
  EXPECT_THAT(complaint([](J& d) { d["model"]["vocab"]["c"] = 5; }),
              AllOf(HasSubstr("model.vocab"), HasSubstr("\"c\""), HasSubstr("same id 5")));
  for (const J& id : {J(-1), J(4e18), J(3.5), J("7"), J(4000000000U), J(1000000)})
    EXPECT_THAT(complaint([&](J& d) { d["model"]["vocab"]["c"] = id; }),
                AllOf(HasSubstr("model.vocab: token \"c\""), HasSubstr(id.dump())));
  EXPECT_THAT(complaint([](J& d) { d["model"]["merges"] = "a b"; }),
              HasSubstr("model.merges: expected an array"));
  EXPECT_THAT(complaint([](J& d) { d["model"]["merges"].push_back("a c"); }),
              AllOf(HasSubstr("model.merges[1]"), HasSubstr("\"c\"")));
  EXPECT_THAT(complaint([](J& d) { d["model"]["merges"].push_back("b a"); }),
              AllOf(HasSubstr("model.merges[1]"), HasSubstr("\"ba\"")));
  EXPECT_THAT(complaint([](J& d) { d["model"]["merges"].push_back("a b c"); }),
              HasSubstr("model.merges[1]: expected two tokens"));
  EXPECT_THAT(complaint([](J& d) { d["model"]["merges"].push_back({"a"}); }),
              HasSubstr("model.merges[1]: expected two tokens"));
  EXPECT_THAT(complaint([](J& d) { d["added_tokens"][1]["id"] = 0; }), HasSubstr("added_tokens[1]"));
  EXPECT_THAT(complaint([](J& d) { d["added_tokens"].push_back(added_token(300, "a")); }),
              AllOf(HasSubstr("added_tokens[3]"), HasSubstr("260")));
  EXPECT_THAT(complaint([](J& d) { d["added_tokens"].push_back(added_token(260, "new")); }),
              AllOf(HasSubstr("added_tokens[3]"), HasSubstr("260")));
  EXPECT_THAT(complaint([](J& d) { d["added_tokens"].push_back(added_token(2000000000, "new")); }),
              HasSubstr("added_tokens[3].id"));
  EXPECT_THAT(complaint([](J& d) { d["added_tokens"].push_back(added_token(1, "<s>")); }),
              HasSubstr("given twice"));
  EXPECT_THAT(complaint([](J& d) { d["added_tokens"].push_back(added_token(300, "")); }),
              HasSubstr("added_tokens[3].content"));
  EXPECT_THAT(complaint([](J& d) { d["added_tokens"][0]["special"] = 1; }),
              HasSubstr("added_tokens[0].special: expected true or false"));
  EXPECT_THAT(complaint([](J& d) { d["normalizer"]["normalizers"][1]["type"] = "Precompiled"; }),
              HasSubstr("normalizer.normalizers[1].type: the normalizer Precompiled"));
  EXPECT_THAT(complaint([](J& d) {
                d["normalizer"] = {{"type", "Replace"}, {"pattern", {{"Regex", "("}}}, {"content", ""}};
              }),
              HasSubstr("normalizer.pattern.Regex"));
  EXPECT_THAT(complaint([](J& d) {
                d["pre_tokenizer"] = {{"type", "UnicodeScripts"}};
              }),
              HasSubstr("pre_tokenizer.type"));
  EXPECT_THAT(complaint([](J& d) {
                d["pre_tokenizer"] = kLlama3Split;
                d["pre_tokenizer"]["behavior"] = "Nowhere";
              }),
              HasSubstr("pre_tokenizer.behavior"));
  EXPECT_THAT(
      complaint([](J& d) {
        d["pre_tokenizer"] = {
            {"type", "Sequence"},
            {"pretokenizers",
             {{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}}, kLlama3Split}}};
      }),
      HasSubstr("pre_tokenizer.pretokenizers[1]"));
  EXPECT_THAT(complaint([](J& d) { d["decoder"]["decoders"][0]["type"] = "CTC"; }),
              HasSubstr("decoder.decoders[0].type: the decoder CTC"));
  EXPECT_THAT(complaint([](J& d) { d["post_processor"]["sep"][1] = 300; }),
              HasSubstr("post_processor.sep[1]: no token has the id 300"));
  EXPECT_THAT(complaint([](J& d) {
                J deep = {{"type", "NFC"}};
                for (int i = 0; i < 100; ++i)
                  deep = {{"type", "Sequence"}, {"normalizers", J::array({deep})}};
                d["normalizer"] = deep;
              }),
              HasSubstr("nested more than"));
}

TEST(DamagedTokenizer, TextThatIsNoJson) {
  const std::string good = byte_level_document({"a b"}).dump();
  for (const std::size_t length : {std::size_t{0}, std::size_t{1}, good.size() / 2, good.size() - 1})
    EXPECT_THAT(message_of<DataError>([&] { parse_tokenizer(good.substr(0, length), "cut.json"); }),
                AllOf(HasSubstr("cut.json"), HasSubstr("not valid JSON")));
  EXPECT_THAT(message_of<DataError>([&] { parse_tokenizer(R"({"model": 1e999})", "file"); }),
              HasSubstr("not valid JSON"));
  EXPECT_THROW(parse_tokenizer("[]", "file"), DataError);
  EXPECT_THROW(parse_tokenizer(std::string(kLong, '['), "file"), DataError);
  // Values that are too deep for a function that calls itself.
  const std::string deep = std::string(kLong, '[') + std::string(kLong, ']');
  for (const std::string& json :
       {deep, R"({"model": )" + deep + "}", R"({"model": {"vocab": {"a": )" + deep + R"(}, "merges": []}})",
        R"({"model": {"vocab": {}, "merges": )" + deep + "}}", R"({"normalizer": {"type": )" + deep + "}}"})
    EXPECT_THROW(parse_tokenizer(json, "file"), DataError);
}

// Cutting texts.

SortedJson with_pre_tokenizer(const SortedJson& split) {
  SortedJson document =
      byte_level_document({"a b", "\u0120 a", "\u010A \u010A", "\u0120 \u0120", "1 2", "! \u010A"});
  document["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {split,
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}}}}};
  document["added_tokens"] = {
      added_token(300, "<|end|>", {{"rstrip", true}}), added_token(301, "<mask>", {{"lstrip", true}}),
      added_token(302, "ba", {{"single_word", true}, {"normalized", true}, {"special", false}})};
  return document;
}

std::vector<SortedJson> cuttable_documents() {
  SortedJson gpt2 = byte_level_document({"a b", "\u0120 a", "\u010A \u010A"});
  SortedJson digits = gpt2;
  digits["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers", {{{"type", "Digits"}, {"individual_digits", true}}, gpt2["pre_tokenizer"]}}};
  SortedJson prefixed = gpt2;
  prefixed["pre_tokenizer"]["add_prefix_space"] = true;
  SortedJson llama3 = with_pre_tokenizer(kLlama3Split);
  SortedJson qwen = llama3;
  qwen["normalizer"] = {{"type", "NFC"}};
  SortedJson gpt4o = llama3;
  gpt4o["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = kGpt4o;
  SortedJson llama2 = byte_fallback_document({"\u2581", "a", "b", "\u2581a", "\u2581\u2581", "ab"},
                                             {"\u2581 \u2581", "\u2581 a", "a b"});
  SortedJson metaspace = llama2;
  metaspace["normalizer"] = nullptr;
  metaspace["pre_tokenizer"] = {
      {"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "first"}, {"split", false}};
  SortedJson metaspace_split = metaspace;
  metaspace_split["pre_tokenizer"]["split"] = true;
  metaspace_split["pre_tokenizer"]["prepend_scheme"] = "always";
  return {gpt2, digits, prefixed, llama3, qwen, gpt4o, llama2, metaspace, metaspace_split};
}

TEST(StablePrefix, PartsHaveTheIdsOfTheWhole) {
  std::mt19937 random(3);
  const std::vector<std::string> atoms = {
      "a",      "b",      "ab",     " ",      " ",        "  ",         "\n",          "\r\n",
      "\t",     "1",      "23",     "!",      ".",        "'s",         "\u00E9",      "e\u0301",
      "\u0301", "\u4F60", "\u3002", "\u2028", "\u00A0",   "\u2581",     "<|end|>",     "<mask>",
      "</s>",   "<",      "|",      "\xC3",   "\xE2\x82", "\U0001F600", "\u1100\u1161"};
  const auto documents = cuttable_documents();
  for (std::size_t d = 0; d < documents.size(); ++d) {
    const auto tokenizer = tokenizer_of(documents[d]);
    std::size_t cuts = 0;
    for (int round = 0; round < 1500; ++round) {
      std::string text;
      for (int i = 0; i < 24; ++i) text += atoms[random() % atoms.size()];
      const Ids expected = tokenizer->encode(text);
      Ids ids;
      std::string pending;
      bool at_start = true;
      for (std::size_t at = 0; at < text.size();) {
        const std::size_t length = 1 + random() % 12;
        pending += text.substr(at, length);
        at += length;
        const std::size_t ready = tokenizer->stable_prefix(pending);
        ASSERT_LE(ready, pending.size());
        if (ready == 0) continue;
        tokenizer->append_ids(std::string_view(pending).substr(0, ready), at_start, ids);
        at_start = false;
        pending.erase(0, ready);
        ++cuts;
      }
      tokenizer->append_ids(pending, at_start, ids);
      ASSERT_EQ(ids, expected) << "tokenizer " << d << ": " << SortedJson(valid_utf8(text)).dump();
    }
    EXPECT_GT(cuts, 1000U) << "tokenizer " << d;
  }
}

TEST(StablePrefix, IsZeroWhereNoPlaceIsKnown) {
  SortedJson own = with_pre_tokenizer(kLlama3Split);
  own["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = R"(\w+ \w+|\s|.)";
  EXPECT_EQ(tokenizer_of(own)->stable_prefix("some words and more"), 0U);
  SortedJson spaced = with_pre_tokenizer(kLlama3Split);
  spaced["added_tokens"].push_back(added_token(303, "two words"));
  EXPECT_EQ(tokenizer_of(spaced)->stable_prefix("some words and more"), 0U);
  SortedJson stripped = with_pre_tokenizer(kLlama3Split);
  stripped["normalizer"] = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}};
  EXPECT_EQ(tokenizer_of(stripped)->stable_prefix("some words and more"), 0U);
  SortedJson crossing = byte_fallback_document({"\u2581", "a", "a\u2581"}, {"a \u2581"});
  EXPECT_EQ(tokenizer_of(crossing)->stable_prefix("some words and more"), 0U);
  EXPECT_EQ(tokenizer_of(with_pre_tokenizer(kLlama3Split))->stable_prefix("some words and more"), 14U);
}

// Inputs that are slow where an algorithm is quadratic: a million characters would take minutes.
TEST(HostileTexts, ManyCharactersAreNoTrouble) {
  std::vector<std::string> merges;
  for (std::string both = "a a"; both.size() < 40;
       both = both.substr(0, both.size() / 2) + both.substr(0, both.size() / 2) + " " +
              both.substr(0, both.size() / 2) + both.substr(0, both.size() / 2))
    merges.push_back(both);
  SortedJson llama3 = with_pre_tokenizer(kLlama3Split);
  SortedJson qwen = llama3;
  qwen["normalizer"] = {{"type", "NFC"}};
  SortedJson gpt4o = llama3;
  gpt4o["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = kGpt4o;
  const auto fallback = byte_fallback_document({"\u2581", "a", "aa", "aaaa", "\u2581\u2581"},
                                               {"a a", "aa aa", "\u2581 \u2581"});
  std::vector<std::string> texts;
  for (const std::string unit : {"a", "A", " ", "\n", "1", "!", "<", "'", "\u0301", "\u0301\u0323", "\u2581",
                                 "a\u0301", " \n", "\u4F60", "<mask>", "<|end|> ", "\xFF"}) {
    std::string& text = texts.emplace_back();
    while (text.size() < kLong) text += unit;
  }
  for (const SortedJson& document : {byte_level_document(merges), llama3, qwen, gpt4o, fallback}) {
    const auto tokenizer = tokenizer_of(document);
    for (const std::string& text : texts) {
      const Ids ids = tokenizer->encode(text);
      EXPECT_GT(ids.size(), 0U);
      EXPECT_EQ(tokenizer->stable_prefix(text) > text.size(), false);
    }
  }
}

TEST(BpeTokenizer, ServesManyThreads) {
  const auto tokenizer = tokenizer_of(with_pre_tokenizer(kLlama3Split));
  const auto other = tokenizer_of(byte_level_document({"a b", "ab a"}));
  std::string text;
  for (int i = 0; i < 2000; ++i)
    text += "abab " + std::to_string(i * i) + (i % 7 == 0 ? "\n\n" : "!") +
            std::string(static_cast<std::size_t>(i % 90), 'a');
  const Ids expected = tokenizer->encode(text), expected_other = other->encode(text);
  std::vector<std::thread> threads;
  std::vector<int> good(4);
  for (std::size_t t = 0; t < good.size(); ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 3; ++i)
        good[t] += (tokenizer->encode(text) == expected) + (other->encode(text) == expected_other);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(good, testing::Each(6));
}

}  // namespace
}  // namespace cartan::data
