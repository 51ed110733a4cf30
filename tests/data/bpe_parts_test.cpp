// Each part of a tokenizer alone: Unicode, regular expressions, normalizers, pre-tokenizers, merges,
// decoders.
#include <cstring>
#include <random>

#include "bpe_support.hpp"
#include "cartan/core/error.hpp"
#include "cartan/data/utf8.hpp"
#include "data/bpe/decoder.hpp"
#include "data/bpe/merges.hpp"
#include "data/bpe/normalizer.hpp"
#include "data/bpe/piece_cache.hpp"
#include "data/bpe/pre_tokenizer.hpp"
#include "data/bpe/regex.hpp"
#include "data/bpe/unicode.hpp"

namespace cartan::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Texts = std::vector<std::string>;

std::string utf8(char32_t code) {
  std::string text;
  bpe::append_utf8(text, code);
  return text;
}

bool matches(std::string_view pattern, std::string_view text) {
  const auto match = bpe::Regex(pattern).find(text, 0);
  return match && match->begin == 0 && match->end == text.size();
}

TEST(TokenizerRegex, WhiteSpaceIsUnicodesWhiteSpace) {
  const std::vector<char32_t> white = {0x9,    0xA,    0xB,    0xC,    0xD,    0x20,   0x85,   0xA0,
                                       0x1680, 0x2000, 0x200A, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000};
  const std::vector<char32_t> other = {0x0, 0x1C, 0x1D, 0x1E, 0x1F, 'a', 0x180E, 0x200B, 0x2060, 0xFEFF};
  for (const char32_t code : white) {
    EXPECT_TRUE(bpe::is_white_space(code)) << static_cast<unsigned>(code);
    for (const char* pattern : {R"(\s)", R"([\s])", R"([x\s])", R"([^\S])"})
      EXPECT_TRUE(matches(pattern, utf8(code))) << pattern << static_cast<unsigned>(code);
    for (const char* pattern : {R"(\S)", R"([\S])", R"([^\s])"})
      EXPECT_FALSE(matches(pattern, utf8(code))) << pattern << static_cast<unsigned>(code);
  }
  for (const char32_t code : other) {
    EXPECT_FALSE(bpe::is_white_space(code)) << static_cast<unsigned>(code);
    for (const char* pattern : {R"(\s)", R"([\s])"})
      EXPECT_FALSE(matches(pattern, utf8(code))) << pattern << static_cast<unsigned>(code);
    for (const char* pattern : {R"(\S)", R"([\S])", R"([^\s])"})
      EXPECT_TRUE(matches(pattern, utf8(code))) << pattern << static_cast<unsigned>(code);
  }
}

TEST(TokenizerRegex, CaseFoldsBeyondAscii) {
  EXPECT_TRUE(matches("(?i:'s)", "'S"));
  EXPECT_TRUE(matches("(?i:'s)", "'\u017F"));
  EXPECT_TRUE(matches("(?i:k)", "\u212A"));
  EXPECT_FALSE(matches("'s", "'S"));
}

TEST(TokenizerRegex, MeansWhatOnigurumaMeans) {
  EXPECT_TRUE(matches(R"(\w)", "\u0663"));  // a digit
  EXPECT_TRUE(matches(R"(\d)", "\u0663"));
  EXPECT_FALSE(matches(R"(\d)", "\u00B2"));  // a number, but no decimal digit
  EXPECT_TRUE(matches(R"(\h)", "f"));        // hexadecimal, not horizontal space
  EXPECT_FALSE(matches(R"(\h)", " "));
  EXPECT_TRUE(matches(R"(\v)", "\v"));
  EXPECT_FALSE(matches(R"(\v)", "\n"));
  EXPECT_TRUE(matches(R"(\u00e9)", "\u00E9"));
  EXPECT_FALSE(matches(".", "\n"));
  EXPECT_TRUE(matches("(?m:.)", "\n"));
  EXPECT_TRUE(matches("a{,2}", "aa"));
  EXPECT_TRUE(matches("{", "{"));
  EXPECT_TRUE(matches(R"(\p{Han}+)", "\u4F60\u597D"));
  EXPECT_FALSE(matches(R"(\p{Han})", "\u3001"));  // shared with other scripts: an extension only
  EXPECT_TRUE(matches(R"(\p{^L})", "1"));
  const auto match = bpe::Regex("b$").find("ab\nb", 0);  // the end of a line
  ASSERT_TRUE(match);
  EXPECT_EQ(match->begin, 1U);
  EXPECT_EQ(bpe::Regex(R"(\bb)").find("\u00E9b b", 0)->begin, 4U);  // a letter beyond ASCII before it
}

TEST(TokenizerRegex, RefusesWhatItWouldGetWrong) {
  for (const char* pattern :
       {"[a&&b]", "[[:alpha:]]", "[a[b]]", "(?x)a", "a(?i)b", "(*ACCEPT)", R"(\K)", R"(\Qa\E)", R"([\W])",
        "\\p{1,3}", "a{1,3}+", "(", "[a", "a\\", R"(\p{Nonsense})", "(?<n>a)"})
    EXPECT_THAT(message_of<DataError>([&] { bpe::Regex regex(pattern); }), HasSubstr("regular expression"))
        << pattern;
}

TEST(TokenizerRegex, GivesUpOnABacktrackingPattern) {
  const bpe::Regex regex("(a|aa)+$");
  std::string text(200, 'a');
  text += 'b';
  EXPECT_THROW(regex.find(text, 0), DataError);
}

std::string normalized(const SortedJson& json, std::string text, bool at_start = true) {
  bpe::read_normalizer(bpe::JsonField(json, "file"))->apply(text, at_start);
  return text;
}

TEST(Normalizer, UnicodeForms) {
  const auto form = [](const char* type, const std::string& text) {
    return normalized({{"type", type}}, text);
  };
  EXPECT_EQ(form("NFC", "e\u0301"), "\u00E9");
  EXPECT_EQ(form("NFD", "\u00E9"), "e\u0301");
  EXPECT_EQ(form("NFKC", "\uFB01 \u2460"), "fi 1");
  EXPECT_EQ(form("NFKD", "\u00E9\uFB01"), "e\u0301fi");
  EXPECT_EQ(form("NFC", "\u212B \u2126"), "\u00C5 \u03A9");  // singletons
  EXPECT_EQ(form("NFC", "q\u0307\u0323"), "q\u0323\u0307");  // reordered
  EXPECT_EQ(form("NFC", "\u1100\u1161\u11A8"), "\uAC01");    // Hangul
  EXPECT_EQ(form("NFC", "\uAC00\u11A8"), "\uAC01");
  EXPECT_EQ(form("NFD", "\uAC01"), "\u1100\u1161\u11A8");
  EXPECT_EQ(form("NFC", "\u0958"), "\u0915\u093C");  // excluded from composition
  EXPECT_EQ(form("NFC", "\u0344"), "\u0308\u0301");
  // Characters newer than Unicode 9 stay where and what they are, and stand between others.
  EXPECT_EQ(form("NFC", "a\u0D3B\u0334"), "a\u0D3B\u0334");
  EXPECT_EQ(form("NFC", "a\u0D3B\u0301"), "a\u0D3B\u0301");
  EXPECT_EQ(form("NFC", "e\u0301\u0D3Be\u0301"), "\u00E9\u0D3B\u00E9");
  EXPECT_EQ(form("NFKD", "\u32FF"), "\u32FF");
  EXPECT_EQ(form("NFD", "\U00011938"), "\U00011938");
  EXPECT_EQ(form("NFC", "\U00011935\U00011930"), "\U00011935\U00011930");
  EXPECT_EQ(form("NFC", ""), "");
  EXPECT_EQ(form("NFC", "plain \u00E9 \u4F60"), "plain \u00E9 \u4F60");
}

/// Text in parts is the same as whole text, whatever stands beside a part: the search for places that need
/// work is right.
TEST(Normalizer, FormsOfRandomTextsAgreeWithThoseOfLongerTexts) {
  std::mt19937 random(5);
  const std::vector<char32_t> codes = {'a',    'e',    ' ',    0x301,   0x323,   0x307,  0x1100,
                                       0x1161, 0x11A8, 0xAC00, 0x915,   0x93C,   0x958,  0x212B,
                                       0x0CC6, 0x0CC2, 0x0CD5, 0x9C7,   0x9BE,   0x3099, 0x304B,
                                       0x1E9B, 0xFB01, 0x4F60, 0x1F600, 0x11099, 0x110BA};
  for (const char* type : {"NFC", "NFD", "NFKC", "NFKD"})
    for (int round = 0; round < 2000; ++round) {
      std::string text;
      for (int i = 0; i < 6; ++i) text += utf8(codes[random() % codes.size()]);
      const std::string once = normalized({{"type", type}}, text);
      EXPECT_EQ(normalized({{"type", type}}, once), once);  // idempotent
      EXPECT_EQ(normalized({{"type", type}}, "\u4F60" + text + "\u4F60"), "\u4F60" + once + "\u4F60");
      // Going through the decomposition changes nothing.
      const char* decomposed = type[2] == 'K' ? "NFKD" : "NFD";
      EXPECT_EQ(normalized({{"type", type}}, normalized({{"type", decomposed}}, text)), once);
    }
}

TEST(Normalizer, Rewriting) {
  EXPECT_EQ(normalized({{"type", "Lowercase"}}, "\u00C9A\u0130\u1E9E"), "\u00E9ai\u0307\u00DF");
  EXPECT_EQ(normalized({{"type", "StripAccents"}}, "e\u0301\u00E9"), "e\u00E9");
  EXPECT_EQ(normalized({{"type", "Prepend"}, {"prepend", "_"}}, "a"), "_a");
  EXPECT_EQ(normalized({{"type", "Prepend"}, {"prepend", "_"}}, ""), "");
  EXPECT_EQ(normalized({{"type", "Prepend"}, {"prepend", "_"}}, "a", false), "a");
  EXPECT_EQ(normalized({{"type", "Replace"}, {"pattern", {{"String", "ab"}}}, {"content", "c"}}, "ababa"),
            "cca");
  EXPECT_EQ(normalized({{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", " "}}, "a   b c"),
            "a b c");
  EXPECT_EQ(normalized({{"type", "Replace"}, {"pattern", {{"Regex", "x*"}}}, {"content", "-"}}, "axxb"),
            "a-b");
  const auto strip = [](bool left, bool right) {
    return normalized({{"type", "Strip"}, {"strip_left", left}, {"strip_right", right}}, "\u2028 a b\u0085 ");
  };
  EXPECT_EQ(strip(true, true), "a b");
  EXPECT_EQ(strip(true, false), "a b\u0085 ");
  EXPECT_EQ(strip(false, true), "\u2028 a b");
  EXPECT_EQ(normalized({{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}}, "  "), "");
}

Texts pieces(const SortedJson& json, std::string_view text, bool at_start = true, bool goes_on = false) {
  Texts out;
  bpe::PreTokenizer(bpe::JsonField(json, "file")).run(text, at_start, goes_on, [&](std::string_view piece) {
    out.emplace_back(piece);
  });
  return out;
}

SortedJson split(const char* behavior, bool invert = false, const SortedJson& pattern = {{"String", "-"}}) {
  return {{"type", "Split"}, {"pattern", pattern}, {"behavior", behavior}, {"invert", invert}};
}

TEST(PreTokenizer, SplitsInEveryWay) {
  // The example of the library's documentation.
  const char* text = "the-final--countdown";
  EXPECT_THAT(pieces(split("Removed"), text), ElementsAre("the", "final", "countdown"));
  EXPECT_THAT(pieces(split("Isolated"), text), ElementsAre("the", "-", "final", "-", "-", "countdown"));
  EXPECT_THAT(pieces(split("MergedWithPrevious"), text), ElementsAre("the-", "final-", "-", "countdown"));
  EXPECT_THAT(pieces(split("MergedWithNext"), text), ElementsAre("the", "-final", "-", "-countdown"));
  EXPECT_THAT(pieces(split("Contiguous"), text), ElementsAre("the", "-", "final", "--", "countdown"));
  EXPECT_THAT(pieces(split("Removed", true), text), ElementsAre("-", "-", "-"));
  EXPECT_THAT(pieces(split("Isolated", false, {{"Regex", "[a-c]?"}}), "xay"), ElementsAre("x", "a", "y"));
  EXPECT_THAT(pieces(split("Isolated"), ""), ElementsAre());
}

TEST(PreTokenizer, Digits) {
  EXPECT_THAT(pieces({{"type", "Digits"}, {"individual_digits", true}}, "a12\u00B2b"),
              ElementsAre("a", "1", "2", "\u00B2", "b"));
  EXPECT_THAT(pieces({{"type", "Digits"}, {"individual_digits", false}}, "a12\u00B2b"),
              ElementsAre("a", "12\u00B2", "b"));
}

TEST(PreTokenizer, ByteLevelSplitsAsGpt2) {
  const auto byte_level = [](bool prefix, bool regex) {
    return SortedJson{
        {"type", "ByteLevel"}, {"add_prefix_space", prefix}, {"trim_offsets", true}, {"use_regex", regex}};
  };
  EXPECT_THAT(pieces(byte_level(false, true), "I'm 12  x\n\n y"),
              ElementsAre("I", "'m", " 12", " ", " x", "\n\n", " y"));
  EXPECT_THAT(pieces(byte_level(true, true), "Hi you"), ElementsAre(" Hi", " you"));
  EXPECT_THAT(pieces(byte_level(true, true), " Hi"), ElementsAre(" Hi"));
  EXPECT_THAT(pieces(byte_level(true, true), "Hi", false, true), ElementsAre("Hi"));
  EXPECT_THAT(pieces(byte_level(false, false), "Hi you"), ElementsAre("Hi you"));
  EXPECT_THAT(
      pieces({{"type", "Sequence"},
              {"pretokenizers", {{{"type", "Digits"}, {"individual_digits", true}}, byte_level(true, true)}}},
             "a1"),
      ElementsAre(" a", " 1"));
}

TEST(PreTokenizer, MetaspaceMarksSpaces) {
  const auto metaspace = [](const char* scheme, bool is_split) {
    return SortedJson{
        {"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", scheme}, {"split", is_split}};
  };
  EXPECT_THAT(pieces(metaspace("always", true), "a  b"), ElementsAre("_a", "_", "_b"));
  EXPECT_THAT(pieces(metaspace("always", false), "a b"), ElementsAre("_a_b"));
  EXPECT_THAT(pieces(metaspace("never", true), "a b"), ElementsAre("a", "_b"));
  EXPECT_THAT(pieces(metaspace("always", true), " a"), ElementsAre("_a"));
  EXPECT_THAT(pieces(metaspace("first", true), "a b"), ElementsAre("_a", "_b"));
  EXPECT_THAT(pieces(metaspace("first", true), "a b", false), ElementsAre("a", "_b"));
  EXPECT_THAT(pieces({{"type", "Metaspace"}, {"replacement", "_"}, {"add_prefix_space", false}}, "a b"),
              ElementsAre("a", "_b"));
}

TEST(PreTokenizer, Words) {
  EXPECT_THAT(pieces({{"type", "Whitespace"}}, "Hey, you_2  there!?"),
              ElementsAre("Hey", ",", "you_2", "there", "!?"));
  EXPECT_THAT(pieces({{"type", "WhitespaceSplit"}}, " a,b \u2028c"), ElementsAre("a,b", "c"));
  EXPECT_THAT(pieces({{"type", "Punctuation"}, {"behavior", "Isolated"}}, "a,,b\u3002$"),
              ElementsAre("a", ",", ",", "b", "\u3002", "$"));
  EXPECT_THAT(pieces({{"type", "CharDelimiterSplit"}, {"delimiter", "|"}}, "a||b"), ElementsAre("a", "b"));
}

/// The definition, word for word: again and again the pair of the lowest rank, of equal ones the leftmost.
void merge_naively(const bpe::MergeTable& table, Ids& ids) {
  while (true) {
    std::size_t best = ids.size();
    for (std::size_t i = 0; i + 1 < ids.size(); ++i)
      if (const auto* merge = table.find(ids[i], ids[i + 1]))
        if (best == ids.size() || merge->rank < table.find(ids[best], ids[best + 1])->rank) best = i;
    if (best == ids.size()) return;
    ids[best] = table.find(ids[best], ids[best + 1])->id;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

TEST(Merges, BothWaysAgreeWithTheDefinition) {
  std::mt19937 random(17);
  for (int round = 0; round < 300; ++round) {
    // Ids name strings of a few letters; every join of two strings that are known makes a third, in random
    // order.
    std::vector<std::string> words{"a", "b", "c"};
    std::vector<std::pair<std::int32_t, std::int32_t>> pairs;
    bpe::MergeTable table(60);
    for (std::uint32_t rank = 0; rank < 50; ++rank) {
      const std::size_t left = random() % words.size(), right = random() % words.size();
      const std::string whole = words[left] + words[right];
      if (whole.size() > 12) continue;
      const auto known = std::find(words.begin(), words.end(), whole);
      const auto id = static_cast<std::int32_t>(known - words.begin());
      if (known == words.end()) words.push_back(whole);
      table.add(static_cast<std::int32_t>(left), static_cast<std::int32_t>(right), {rank, id});
    }
    Ids ids(1 + random() % 120);
    for (auto& id : ids) id = static_cast<std::int32_t>(random() % (round % 2 == 0 ? 3 : 1));
    Ids expected = ids, scanned = ids, by_heap = ids, chosen = ids;
    merge_naively(table, expected);
    table.apply_by_scanning(scanned);
    table.apply_by_heap(by_heap);
    table.apply(chosen);
    EXPECT_EQ(scanned, expected);
    EXPECT_EQ(by_heap, expected);
    EXPECT_EQ(chosen, expected);
  }
}

TEST(PieceCache, TellsPiecesOfEveryLengthApart) {
  using bpe::PieceCache;
  PieceCache cache;
  cache.belong_to(1);
  std::string bytes;
  for (int i = 0; i < 40; ++i) bytes += static_cast<char>(200 - i);
  for (std::size_t length = 1; length <= PieceCache::kLongestPiece; ++length) {
    const std::string piece = bytes.substr(1, length);
    const PieceCache::Key key(piece);
    EXPECT_EQ(key, PieceCache::Key(std::string_view(bytes).substr(1, length)));
    std::string spelled(32, '\0');
    piece.copy(spelled.data(), length);
    spelled[31] = static_cast<char>(length);
    EXPECT_EQ(std::memcmp(key.words, spelled.data(), 32), 0) << length;
    for (std::size_t at = 0; at < length; ++at) {
      std::string other = piece;
      other[at] = '\0';
      EXPECT_FALSE(key == PieceCache::Key(other));
    }
    EXPECT_FALSE(key == PieceCache::Key(piece.substr(0, length - 1) + "x"));
    Ids ids, found;
    for (std::size_t i = 0; i < length % 9; ++i) ids.push_back(static_cast<std::int32_t>(i));
    EXPECT_FALSE(cache.append(key, found));
    cache.put(key, ids);
    EXPECT_EQ(cache.append(key, found), ids.size() <= PieceCache::kMostIds);
    if (ids.size() <= PieceCache::kMostIds) {
      EXPECT_EQ(found, ids);
    }
  }
  cache.belong_to(2);
  Ids found;
  EXPECT_FALSE(cache.append(PieceCache::Key("\xC7"), found));
}

std::string decoded(const SortedJson& json, const Texts& tokens, bool at_start = true) {
  const bpe::Decoder decoder(json.is_null() ? std::nullopt : std::optional(bpe::JsonField(json, "file")));
  auto steps = decoder.start(at_start);
  std::string text;
  std::vector<std::string> now, next;
  const auto run = [&](std::size_t first) {
    for (std::size_t s = first; s < steps.size(); ++s) {
      next.clear();
      for (const std::string& token : now) steps[s]->push(token, next);
      now.swap(next);
    }
    for (const std::string& token : now) text += token;
  };
  for (const std::string& token : tokens) {
    now = {token};
    run(0);
  }
  for (std::size_t s = 0; s < steps.size(); ++s) {
    now.clear();
    steps[s]->finish(now);
    run(s + 1);
  }
  return text;
}

SortedJson in_sequence(const SortedJson& steps) { return {{"type", "Sequence"}, {"decoders", steps}}; }

TEST(Decoder, EveryKind) {
  EXPECT_EQ(decoded(nullptr, {"a", "b"}), "a b");
  EXPECT_EQ(decoded(nullptr, {"a", "b"}, false), " a b");
  EXPECT_EQ(decoded({{"type", "ByteLevel"}}, {"\u0120a", "\u010A", "\u00C3\u00A9", "has space"}),
            " a\n\xC3\xA9has space");
  EXPECT_EQ(
      decoded({{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "always"}}, {"_a_", "_b"}),
      "a b");
  EXPECT_EQ(decoded({{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "always"}}, {"_a", "_b"},
                    false),
            " a b");
  EXPECT_EQ(decoded({{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "never"}}, {"_a", "_b"}),
            " a b");
  EXPECT_EQ(decoded({{"type", "Strip"}, {"content", "-"}, {"start", 1}, {"stop", 2}}, {"--a---", "-", "b-"}),
            "-a-b");
  EXPECT_EQ(decoded({{"type", "Replace"}, {"pattern", {{"String", "x"}}}, {"content", "y"}}, {"axx", "x"}),
            "ayyy");
  EXPECT_EQ(
      decoded({{"type", "ByteFallback"}}, {"<0xE4>", "<0xBD>", "<0xA0>", "a", "<0xE4>", "<0x0A>", "<0xGG>"}),
      "\u4F60a\uFFFD\uFFFD<0xGG>");
}

TEST(Decoder, StepsAfterFuseSeeOneToken) {
  const SortedJson fuse = {{"type", "Fuse"}};
  const auto strip = [](int start, int stop) {
    return SortedJson{{"type", "Strip"}, {"content", " "}, {"start", start}, {"stop", stop}};
  };
  EXPECT_EQ(decoded(in_sequence({fuse, strip(1, 0)}), {" ", " a", " b"}), " a b");
  EXPECT_EQ(decoded(in_sequence({fuse, strip(3, 0)}), {" ", "", " a", " b"}), "a b");
  EXPECT_EQ(decoded(in_sequence({fuse, strip(1, 1)}), {" a", " b", " "}), "a b");
  EXPECT_EQ(decoded(in_sequence({fuse, strip(1, 0)}), {" a"}, false), " a");
  EXPECT_EQ(
      decoded(in_sequence({fuse, {{"type", "Replace"}, {"pattern", {{"String", "ab"}}}, {"content", "c"}}}),
              {"a", "b", "a"}),
      "ca");
}

TEST(ByteLevel, EveryByteHasACharacterAndBack) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string character = bpe::byte_level_character(static_cast<unsigned char>(byte));
    EXPECT_EQ(bpe::byte_level_bytes(character), std::string(1, static_cast<char>(byte)));
  }
  EXPECT_EQ(bpe::byte_level_character(' '), "\u0120");
  EXPECT_EQ(bpe::byte_level_character('a'), "a");
  EXPECT_EQ(bpe::byte_level_bytes(" "), std::nullopt);
}

}  // namespace
}  // namespace cartan::data
