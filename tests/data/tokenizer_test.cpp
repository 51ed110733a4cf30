// The byte tokenizer, streaming decode, and UTF-8 repair.
#include "cartan/data/tokenizer.hpp"

#include "cartan/core/error.hpp"
#include "cartan/data/utf8.hpp"
#include "data_test_support.hpp"

namespace cartan::data {
namespace {

using Ids = std::vector<std::int32_t>;

TEST(ByteTokenizer, IdsAreBytesAnd256EndsADocument) {
  const auto tokenizer = make_tokenizer("byte");
  EXPECT_EQ(tokenizer->name(), "byte");
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->end_of_text(), 256);
  EXPECT_EQ(tokenizer->encode("a\n\xC3\xA9"), (Ids{97, 10, 0xC3, 0xA9}));
  EXPECT_EQ(tokenizer->encode(""), Ids{});
}

TEST(ByteTokenizer, DecodesWhatItEncodedForEveryByte) {
  std::string text;
  for (int c = 0; c < 256; ++c) text += static_cast<char>(c);
  const auto tokenizer = make_tokenizer("byte");
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  EXPECT_EQ(tokenizer->decode(Ids{104, 105, 256}), "hi");
}

TEST(ByteTokenizer, RefusesIdsOutsideItsVocabulary) {
  const auto tokenizer = make_tokenizer("byte");
  EXPECT_THAT(message_of<DataError>([&] {
                tokenizer->decode(Ids{1, 257});
              }),
              testing::HasSubstr("token id 257"));
  EXPECT_THROW(tokenizer->decode(Ids{-1}), DataError);
}

TEST(MakeTokenizer, RefusesWhatItDoesNotKnow) {
  EXPECT_THAT(message_of<ConfigError>([] { make_tokenizer("bytes"); }),
              testing::AllOf(testing::HasSubstr("use byte"), testing::HasSubstr("tokenizer.json"),
                             testing::Not(testing::HasSubstr("\n"))));
  EXPECT_THAT(message_of<MissingError>([] { make_tokenizer("models/tokenizer.json"); }),
              testing::HasSubstr("models/tokenizer.json"));
}

TEST(DecodeStream, HoldsBackACutCharacter) {
  const auto tokenizer = make_tokenizer("byte");
  DecodeStream stream(*tokenizer);
  EXPECT_EQ(stream.push('a'), "a");
  EXPECT_EQ(stream.push(0xE2), "");
  EXPECT_EQ(stream.push(0x82), "");
  EXPECT_EQ(stream.push(0xAC), "\xE2\x82\xAC");  // the euro sign
  EXPECT_EQ(stream.push(0xF0), "");
  EXPECT_EQ(stream.push(256), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(stream.finish(), "");
}

TEST(DecodeStream, ConcatenatesToTheValidFormOfTheWholeText) {
  const auto tokenizer = make_tokenizer("byte");
  const std::string text = "x\xE2\x82y\xF0\x9F\x98\x80\xED\xA0\x80\xC3";
  DecodeStream stream(*tokenizer);
  std::string shown;
  for (const std::int32_t id : tokenizer->encode(text)) shown += stream.push(id);
  shown += stream.finish();
  EXPECT_EQ(shown, valid_utf8(text));
}

TEST(ValidUtf8, KeepsEveryKindOfCharacter) {
  for (const std::string text : {"", "plain", "\xC2\x80", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
                                 "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_EQ(valid_utf8(text), text);
    EXPECT_TRUE(is_valid_utf8(text));
    EXPECT_TRUE(is_valid_utf8("0123456" + text + "89abcdef"));
  }
}

TEST(ValidUtf8, ReplacesEachMaximalPieceOnce) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_FALSE(is_valid_utf8("01234567\x80"));
  EXPECT_FALSE(is_valid_utf8("0123456\xE2\x82"));
  EXPECT_EQ(valid_utf8("\x80"), r);                          // a lone continuation
  EXPECT_EQ(valid_utf8("\xC0\xAF"), r + r);                  // overlong
  EXPECT_EQ(valid_utf8("\xE0\x9F\xBF"), r + r + r);          // overlong
  EXPECT_EQ(valid_utf8("\xED\xA0\x80"), r + r + r);          // a surrogate
  EXPECT_EQ(valid_utf8("\xF4\x90\x80\x80"), r + r + r + r);  // above U+10FFFF
  EXPECT_EQ(valid_utf8("\xF5"), r);
  EXPECT_EQ(valid_utf8("\xE2\x82"
                       "A"),
            r + "A");                        // cut, then a letter
  EXPECT_EQ(valid_utf8("\xF0\x9F\x98"), r);  // cut at the end
}

}  // namespace
}  // namespace cartan::data
