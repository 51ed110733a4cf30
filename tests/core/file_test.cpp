#include "cartan/core/file.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include "cartan/core/error.hpp"
#include "cartan/core/json.hpp"

namespace cartan {
namespace {

namespace fs = std::filesystem;

class Files : public ::testing::Test {
 protected:
  Files() : folder_(fs::temp_directory_path() / fmt::format("cartan_file_test_{}", ::getpid())) {
    fs::create_directories(folder_);
  }
  ~Files() override { fs::remove_all(folder_); }
  fs::path folder_;
};

TEST_F(Files, AtomicWriteReplacesTheContentAndLeavesNothingBeside) {
  write_file_atomically(folder_ / "a", "first");
  write_file_atomically(folder_ / "a", std::string("second\0x", 8));
  EXPECT_EQ(read_file(folder_ / "a"), std::string("second\0x", 8));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

TEST_F(Files, AFailedWriteKeepsTheOldFile) {
  fs::create_directories(folder_ / "a" / "inside");
  EXPECT_THROW(write_file_atomically(folder_ / "a", "x"), IoError);  // a folder cannot be replaced by a file
  EXPECT_THROW(write_file_atomically(folder_ / "missing" / "b", "x"), Error);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

TEST_F(Files, ErrorsNameThePath) {
  try {
    read_file(folder_ / "nowhere");
    FAIL();
  } catch (const MissingError& error) {
    EXPECT_NE(std::string(error.what()).find("nowhere"), std::string::npos);
    EXPECT_EQ(error.code(), ExitCode::missing_input);
  }
  EXPECT_THROW(MappedFile{folder_}, IoError);
}

TEST_F(Files, AnEmptyFileMapsToNoBytes) {
  write_file_atomically(folder_ / "empty", "");
  EXPECT_TRUE(MappedFile(folder_ / "empty").bytes().empty());
}

TEST_F(Files, JsonNumbersRoundTripExactly) {
  for (const double value : {0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308, -2.718281828459045}) {
    const std::string text = Json(value).dump();
    EXPECT_EQ(parse_json(text, "test").get<double>(), value);
  }
}

TEST_F(Files, JsonMayHaveCommentsWhereThatIsSaid) {
  const std::string text = "{\"a\": /* one */ 1 // the last\n}";
  EXPECT_EQ(parse_json(text, "test", true).at("a"), 1);
  EXPECT_THROW(parse_json(text, "test"), DataError);
}

TEST_F(Files, JsonNumbersBeyondAllTypesAreBadData) {
  EXPECT_THROW(parse_json(R"({"a": 1e999})", "test"), DataError);
}

TEST_F(Files, BadJsonNamesFileAndLine) {
  write_file_atomically(folder_ / "bad.json", "{\n\"a\": 1,\n oops\n}");
  try {
    read_json(folder_ / "bad.json");
    FAIL();
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("bad.json"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("line 3"), std::string::npos) << error.what();
  }
}

TEST(Problems, AreSaidTogether) {
  Problems problems;
  EXPECT_NO_THROW(problems.throw_if_any("the test"));
  problems.add("one {}", 1);
  problems.add("two");
  try {
    problems.throw_if_any("the test");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "2 problems in the test\n  one 1\n  two");
  }
}

}  // namespace
}  // namespace cartan
