// Parquet files that pyarrow wrote (golden/parquet/make.py), where cartan is built with Apache Arrow.
#include "cartan/core/error.hpp"
#include "cartan/data/tokenize.hpp"
#include "data_test_support.hpp"

namespace cartan::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

using Texts = std::vector<std::string>;

const std::string kGolden = std::string(CARTAN_GOLDEN_DIR) + "/parquet/";

class Parquet : public testing::Test {
 protected:
  TokenizeCounts run(const std::string& name, const TokenizeOptions& options = {}) {
    return tokenize_files(Texts{kGolden + name}, folder / "out", *tokenizer, options);
  }
  std::string refusal(const std::string& name, const std::string& key) {
    return message_of<DataError>([&] { run(name, {.json_key = key}); });
  }
  Documents documents() const {
    const IndexedDataset dataset(folder / "out");
    Documents documents;
    for (Index d = 0; d < dataset.documents(); ++d) {
      documents.emplace_back(static_cast<std::size_t>(dataset.document_tokens(d).size()));
      dataset.read_tokens(dataset.document_tokens(d).begin, documents.back());
    }
    return documents;
  }
  TemporaryFolder folder;
  std::unique_ptr<Tokenizer> tokenizer = make_tokenizer("byte");
};

class ParquetWithArrow : public Parquet {
 protected:
  void SetUp() override {
    if (parquet_library().empty()) GTEST_SKIP() << "this build has no Apache Arrow";
  }
};

TEST_F(Parquet, WithoutArrowOneSentenceSaysSo) {
  if (!parquet_library().empty()) GTEST_SKIP() << "this build has " << parquet_library();
  EXPECT_THAT(
      message_of<ConfigError>([&] { run("text.parquet"); }),
      AllOf(HasSubstr("text.parquet: this cartan is built without Apache Arrow"), HasSubstr("JSON lines")));
}

TEST_F(ParquetWithArrow, RowsOfAStringColumnAreDocuments) {
  std::vector<std::int32_t> third;
  tokenizer->append_ids("f\u00fcnf \u4f60\u597d", true, third);
  third.push_back(256);
  for (const char* name : {"text.parquet", "large.parquet"})
    for (const Index chunk : {1, 1000}) {
      const TokenizeCounts counts = run(name, {.chunk_bytes = chunk, .threads = 2});
      EXPECT_EQ(counts.empty_texts, 2);
      std::vector<std::int32_t> last(40, 'x');
      last.push_back(256);
      EXPECT_THAT(documents(),
                  ElementsAre(std::vector<std::int32_t>{'f', 'i', 'r', 's', 't', 256}, third, last));
      EXPECT_FALSE(counts.has_mask);
    }
}

TEST_F(ParquetWithArrow, ListsOfIdsAreSamples) {
  for (const Index chunk : {1, 1000}) {
    const TokenizeCounts counts = run("ids.parquet", {.chunk_bytes = chunk});
    EXPECT_THAT(documents(), ElementsAre(std::vector<std::int32_t>{65, 66, 67},
                                         std::vector<std::int32_t>{68, 256}, std::vector<std::int32_t>{69}));
    EXPECT_TRUE(counts.has_mask);
    EXPECT_EQ(counts.counted, 6);
  }
  EXPECT_EQ(run("labels.parquet").counted, 3);
  EXPECT_EQ(documents().size(), 3u);
}

TEST_F(ParquetWithArrow, OtherColumnsAreRefusedByName) {
  EXPECT_THAT(refusal("text.parquet", "body"),
              AllOf(HasSubstr("no column body"), HasSubstr("id, text, tags")));
  EXPECT_THAT(refusal("text.parquet", "tags"), AllOf(HasSubstr("the column tags"), HasSubstr("list<")));
  EXPECT_THAT(refusal("nested.parquet", "text"),
              AllOf(HasSubstr("the column text"), HasSubstr("struct<role")));
  EXPECT_THAT(refusal("nested.parquet", "number"), HasSubstr("double"));
  EXPECT_THAT(refusal("nested.parquet", "none"),
              AllOf(HasSubstr("the column input_ids"), HasSubstr("integers")));
  EXPECT_THAT(refusal("null_id.parquet", "text"), AllOf(HasSubstr("row 0"), HasSubstr("input_ids[1] = -1")));
}

TEST_F(ParquetWithArrow, BrokenFilesAreRefused) {
  const std::string good = read_file(kGolden + "text.parquet");
  for (const std::string& content :
       {std::string("PAR1"), std::string("no parquet at all"), good.substr(0, good.size() / 2),
        good.substr(0, good.size() - 20) + good.substr(good.size() - 8)}) {
    const std::string file = folder.put("bad.parquet", content);
    EXPECT_THAT(message_of<DataError>([&] { tokenize_files(Texts{file}, folder / "out", *tokenizer); }),
                HasSubstr("bad.parquet"));
  }
}

}  // namespace
}  // namespace cartan::data
