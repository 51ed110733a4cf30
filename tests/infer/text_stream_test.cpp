#include "cartan/infer/text_stream.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace cartan::infer {
namespace {

/// The tokenizer byte: a token a byte, 256 ends a text.
class TextStreamTest : public ::testing::Test {
 protected:
  /// The text after each byte, and at the end.
  std::vector<std::string> texts_of(const std::string& bytes, const std::vector<std::string>& stops) {
    TextStream stream(*tokenizer_, {256}, stops);
    std::vector<std::string> texts;
    went_on_ = 0;
    for (const char byte : bytes) {
      const bool goes_on = stream.push(static_cast<unsigned char>(byte));
      texts.push_back(stream.text());
      if (!goes_on) break;
      ++went_on_;
    }
    stream.finish();
    texts.push_back(stream.text());
    return texts;
  }

  std::unique_ptr<data::Tokenizer> tokenizer_ = data::make_tokenizer("byte");
  std::size_t went_on_ = 0;
};

using Texts = std::vector<std::string>;

TEST_F(TextStreamTest, OnlyWholeCharactersComeOut) {
  EXPECT_EQ(texts_of("a\xc3\xa9"
                     "b",
                     {}),
            (Texts{"a", "a", "a\xc3\xa9",
                   "a\xc3\xa9"
                   "b",
                   "a\xc3\xa9"
                   "b"}));
  // A character that is cut becomes U+FFFD, as bytes do that are none.
  EXPECT_EQ(texts_of("a\xe2\x82", {}), (Texts{"a", "a", "a", "a\xef\xbf\xbd"}));
  EXPECT_EQ(texts_of("\xff"
                     "b",
                     {}),
            (Texts{"\xef\xbf\xbd",
                   "\xef\xbf\xbd"
                   "b",
                   "\xef\xbf\xbd"
                   "b"}));
}

TEST_F(TextStreamTest, NothingOfAStopStringComesOut) {
  EXPECT_EQ(texts_of("ab--c--->d", {"--->"}),
            (Texts{"a", "ab", "ab", "ab", "ab--c", "ab--c", "ab--c", "ab--c", "ab--c", "ab--c"}));
  EXPECT_EQ(went_on_, 8u);
  // What looked like one comes when it is none, at the latest at the end.
  EXPECT_EQ(texts_of("a--", {"--->"}), (Texts{"a", "a", "a", "a--"}));
  // It may begin anew inside of itself.
  EXPECT_EQ(texts_of("aabaabc", {"aabc"}).back(), "aab");
  EXPECT_EQ(texts_of("aaaab", {"aab"}).back(), "aa");
}

TEST_F(TextStreamTest, TheFirstOfSeveralEndsTheText) {
  EXPECT_EQ(texts_of("one two three", {"three", "two"}).back(), "one ");
  EXPECT_EQ(texts_of("one two", {"wo t", "e t"}).back(), "on");
  EXPECT_EQ(texts_of("x", {"x"}).back(), "");
  EXPECT_EQ(texts_of("one", {"two"}).back(), "one");
}

TEST_F(TextStreamTest, StopStringsOfSeveralBytesACharacter) {
  EXPECT_EQ(texts_of("caf\xc3\xa9!", {"\xc3\xa9"}).back(), "caf");
  EXPECT_EQ(went_on_, 4u);
}

TEST_F(TextStreamTest, EndTokensAreNoText) {
  TextStream stream(*tokenizer_, {256, 'z'}, {});
  EXPECT_TRUE(stream.push('a'));
  EXPECT_TRUE(stream.push('z'));
  EXPECT_TRUE(stream.push(256));
  stream.finish();
  EXPECT_EQ(stream.text(), "a");
}

TEST_F(TextStreamTest, TokensOfAnotherVocabularyMakeNoText) {
  TextStream stream(*tokenizer_, {}, {"c"});
  EXPECT_TRUE(stream.push('a'));
  EXPECT_EQ(stream.text(), "a");
  EXPECT_TRUE(stream.push(5000));
  EXPECT_EQ(stream.text(), "");
  EXPECT_TRUE(stream.push('c'));
  stream.finish();
  EXPECT_EQ(stream.text(), "");
}

}  // namespace
}  // namespace cartan::infer
