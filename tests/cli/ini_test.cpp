#include "cli/ini.hpp"

#include <gmock/gmock.h>

#include <random>

namespace cartan::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Read {
  std::vector<std::string> entries;  // "LINE key=value"
  std::vector<std::string> problems;
};

Read read(std::string_view text) {
  Problems problems;
  Read result;
  for (const IniEntry& entry : parse_ini(text, "a.ini", problems))
    result.entries.push_back(fmt::format("{} {}={}", entry.line, entry.key, entry.value));
  result.problems = problems.lines();
  return result;
}

TEST(Ini, ReadsSectionsNamesAndComments) {
  const Read found = read(
      "# a comment\n"
      "\n"
      "model.layers = 2\n"
      "[model]   # a section\n"
      "hidden=64\n"
      "  heads =  4   # behind a blank\n"
      "; another comment\n"
      "[ run ]\n"
      "dir = runs/a#b\n"
      "empty =\n"
      "none = # only a comment\n");
  EXPECT_THAT(found.problems, IsEmpty());
  EXPECT_THAT(found.entries, ElementsAre("3 model.layers=2", "5 model.hidden=64", "6 model.heads=4",
                                         "9 run.dir=runs/a#b", "10 run.empty=", "11 run.none="));
}

TEST(Ini, TakesFilesOfOtherSystems) {
  EXPECT_THAT(read("\xEF\xBB\xBF[a]\r\nb = 1\r\n\r\nc = two words\t \r").entries,
              ElementsAre("2 a.b=1", "4 a.c=two words"));
}

TEST(Ini, AnEmptyTextHasNoEntries) {
  EXPECT_THAT(read("").entries, IsEmpty());
  EXPECT_THAT(read("\n").entries, IsEmpty());
}

TEST(Ini, QuotesKeepWhatWouldBeLost) {
  const Read found = read(R"([a]
b = " blanks "  # comment
c = "a # b"
d = "\"q\" \\ \n\t\r"
e = ""
)");
  EXPECT_THAT(found.problems, IsEmpty());
  EXPECT_THAT(found.entries, ElementsAre("2 a.b= blanks ", "3 a.c=a # b", "4 a.d=\"q\" \\ \n\t\r", "5 a.e="));
}

TEST(Ini, NamesTheLineOfEveryFault) {
  const Read found = read(
      "[model\n"
      "hidden 64\n"
      "= 3\n"
      "[]\n"
      "a = \"open\n"
      "b = \"closed\" more\n"
      "c = \"\\x\"\n"
      "d = 1\n");
  EXPECT_THAT(found.entries, ElementsAre("8 d=1"));
  EXPECT_THAT(found.problems,
              ElementsAre(HasSubstr("a.ini:1: expected [section], found '[model'"),
                          HasSubstr("a.ini:2: expected"), HasSubstr("a.ini:3: expected"),
                          HasSubstr("a.ini:4: expected"), HasSubstr("a.ini:5: the value of a"),
                          HasSubstr("a.ini:6: the value of b"), HasSubstr("a.ini:7: the value of c")));
}

TEST(Ini, AKeyThatStandsTwiceNamesBothLines) {
  const Read found = read("[a]\nb = 1\n[c]\nb = 2\n[a]\nb = 3\n");
  EXPECT_THAT(found.entries, ElementsAre("2 a.b=1", "4 c.b=2"));
  EXPECT_THAT(found.problems, ElementsAre("a.ini:6: a.b is already set on line 2: remove one of the two"));
}

TEST(Ini, BinaryFilesAreNamedAsSuch) {
  EXPECT_THAT(read(std::string_view("a = \0b\n", 7)).problems,
              ElementsAre(HasSubstr("a.ini:1: this line holds a zero byte")));
}

TEST(Ini, EveryValueRoundTrips) {
  std::mt19937 random(7);
  const std::string letters = " \t\n\r\"\\#;=[]ab.";
  for (int i = 0; i < 5000; ++i) {
    std::string value(random() % 6, ' ');
    for (char& c : value) c = letters[random() % letters.size()];
    Problems problems;
    const auto entries = parse_ini("[a]\nb = " + ini_value(value) + "   # comment\n", "a.ini", problems);
    ASSERT_TRUE(problems.empty()) << problems.lines()[0] << " in " << ini_value(value);
    ASSERT_EQ(entries.size(), 1u);
    ASSERT_EQ(entries[0].value, value) << ini_value(value);
  }
}

TEST(Ini, RandomBytesNeverCrash) {
  std::mt19937 random(11);
  const std::string tokens[] = {
      "[", "]", "=", "\"", "\\", "#", "\n", " ", "model", ".", "hidden", std::string(1, '\0'), "\xff"};
  for (int i = 0; i < 5000; ++i) {
    std::string text;
    const auto pieces = random() % 40;
    for (unsigned k = 0; k < pieces; ++k)
      text += i % 2 == 0 ? std::string(1, static_cast<char>(random())) : tokens[random() % std::size(tokens)];
    const Read found = read(text);
    const auto lines = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')) + 1;
    ASSERT_LE(found.entries.size() + found.problems.size(), lines);
  }
}

}  // namespace
}  // namespace cartan::cli
