// Megatron's golden files are read; each kind of broken file is refused with its reason.
#include "cartan/data/indexed_dataset.hpp"

#include <cstring>
#include <functional>

#include "cartan/core/error.hpp"
#include "cartan/core/json.hpp"
#include "cartan/data/inspect.hpp"
#include "data_test_support.hpp"

namespace cartan::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::string kGolden = std::string(CARTAN_GOLDEN_DIR) + "/megatron";

TEST(IndexedDataset, ReadsMegatronsFiles) {
  int datasets = 0;
  const Json golden = read_json(kGolden + "/expected.json")["datasets"];
  for (const auto& [name, expected] : golden.items()) {
    SCOPED_TRACE(name);
    const IndexedDataset dataset(kGolden + "/" + name);
    EXPECT_EQ(static_cast<int>(dataset.token_type()), expected["dtype_code"].get<int>());
    EXPECT_EQ(dataset.has_modes(), !expected["modes"].is_null());
    EXPECT_EQ(dataset.bin_bytes(), expected["bin_bytes"].get<Index>());
    EXPECT_EQ(dataset.idx_bytes(), expected["idx_bytes"].get<Index>());
    const auto sequences = expected["sequences"].get<Documents>();
    const auto documents = expected["documents"].get<Documents>();
    ASSERT_EQ(dataset.sequences(), static_cast<Index>(sequences.size()));
    ASSERT_EQ(dataset.documents(), static_cast<Index>(documents.size()));
    const auto read = [&](IndexRange range) {
      std::vector<std::int32_t> ids(static_cast<std::size_t>(range.size()));
      dataset.read_tokens(range.begin, ids);
      return ids;
    };
    for (Index s = 0; s < dataset.sequences(); ++s) {
      EXPECT_EQ(dataset.sequence_length(s), static_cast<Index>(sequences[s].size()));
      EXPECT_EQ(read(dataset.sequence_tokens(s)), sequences[s]);
    }
    for (Index d = 0; d < dataset.documents(); ++d) {
      EXPECT_EQ(read(dataset.document_tokens(d)), documents[d]);
      const IndexRange range = dataset.document_tokens(d);
      for (Index t = range.begin; t < range.end; ++t) EXPECT_EQ(dataset.document_of_token(t), d);
    }
    ++datasets;
  }
  EXPECT_EQ(datasets, 7);
}

TEST(IndexedDataset, AcceptsTheNameOfEitherFile) {
  EXPECT_EQ(IndexedDataset(kGolden + "/wide_u16.idx").tokens(), 50);
  EXPECT_EQ(IndexedDataset(kGolden + "/wide_u16.bin").prefix(), kGolden + "/wide_u16");
}

TEST(IndexedDataset, OpensADatasetWithoutDocuments) {
  const TemporaryFolder folder;
  write_documents(folder / "none", {});
  const IndexedDataset dataset(folder / "none");
  EXPECT_EQ(dataset.documents(), 0);
  EXPECT_EQ(dataset.tokens(), 0);
  EXPECT_EQ(verify(dataset).max_id, 0);
}

TEST(IndexedDataset, ChoosesTheTypeThatMegatronChooses) {
  EXPECT_EQ(token_type_for(257), TokenType::u16);
  EXPECT_EQ(token_type_for(65499), TokenType::u16);
  EXPECT_EQ(token_type_for(65500), TokenType::i32);
}

TEST(ReadTokens, NamesDocumentAndPositionOfAnIdBeyondTheVocabulary) {
  const TemporaryFolder folder;
  write_documents(folder / "a", {{1, 2}, {}, {3, 4, 300, 400}});
  const IndexedDataset dataset(folder / "a");
  std::vector<std::int32_t> ids(5);
  EXPECT_NO_THROW(dataset.read_tokens(0, std::span(ids).first(4), 257));
  EXPECT_NO_THROW(dataset.read_tokens(0, ids, 301));
  EXPECT_THAT(message_of<DataError>([&] { dataset.read_tokens(0, ids, 300); }),
              AllOf(HasSubstr(folder / "a.bin"), HasSubstr("document 2, position 2 (token 4 of the file)"),
                    HasSubstr("token id 300"), HasSubstr("expected 0 to 299"), HasSubstr("model.vocab")));
}

TEST(ReadTokens, RefusesValuesThatAreNoIdInEveryType) {
  const TemporaryFolder folder;
  for (const TokenType type : {TokenType::i8, TokenType::i16, TokenType::i32, TokenType::i64}) {
    write_documents(folder / "negative", {{5, -3}}, type);
    const IndexedDataset dataset(folder / "negative");
    EXPECT_THAT(message_of<DataError>([&] { verify(dataset); }), HasSubstr("token id -3"));
    EXPECT_THROW(verify(dataset, 100), DataError);
  }
  write_documents(folder / "large", {{5, 6}}, TokenType::i64);
  std::string bin = read_file(folder / "large.bin");
  bin[8 + 4] = 1;  // 6 + 2^32: must not pass as 6
  folder.put("large.bin", bin);
  const IndexedDataset dataset(folder / "large");
  EXPECT_THAT(message_of<DataError>([&] { verify(dataset); }), HasSubstr("token id 4294967302"));
}

TEST(Describe, CountsWhatIsThere) {
  const TemporaryFolder folder;
  write_documents(folder / "a", {{7, 2}, {}, {3, 4, 300}});
  const IndexedDataset dataset(folder / "a");
  const Json plain = describe(dataset);
  EXPECT_EQ(plain["documents"], 3);
  EXPECT_EQ(plain["sequences"], 2);
  EXPECT_EQ(plain["tokens"], 5);
  EXPECT_EQ(plain["dtype"], "u16");
  EXPECT_EQ(plain["bin_bytes"], 10);
  EXPECT_EQ(plain["idx_bytes"], 34 + 2 * 12 + 4 * 8);
  EXPECT_FALSE(plain.contains("min_id"));
  const Json scanned = describe(dataset, verify(dataset));
  EXPECT_EQ(scanned["min_id"], 2);
  EXPECT_EQ(scanned["max_id"], 300);
  EXPECT_EQ(scanned["empty_documents"], 1);
  EXPECT_EQ(scanned["longest_document"], 3);
}

TEST(Verify, ReadsEveryTokenOfALargeFile) {
  const TemporaryFolder folder;
  std::vector<std::int32_t> ids(200001, 9);
  ids.back() = 8;
  ids[70000] = 11;
  write_documents(folder / "a", {ids});
  const DatasetScan scan = verify(IndexedDataset(folder / "a"));
  EXPECT_EQ(scan.min_id, 8);
  EXPECT_EQ(scan.max_id, 11);
}

// Broken files: two documents, {1, 2, 3} and {4, 5}, as u16. Offsets in the index: 9 version, 17 type, 18
// sequences, 26 indices, 34 lengths, 42 offsets, 58 document indices, 82 end.
class BrokenDataset : public testing::Test {
 protected:
  BrokenDataset() {
    write_documents(folder / "a", {{1, 2, 3}, {4, 5}});
    idx = read_file(folder / "a.idx");
    bin = read_file(folder / "a.bin");
  }
  template <class T>
  void set(std::size_t at, T value) {
    std::memcpy(idx.data() + at, &value, sizeof value);
  }
  std::string message() {
    folder.put("a.idx", idx);
    folder.put("a.bin", bin);
    return message_of<DataError>([&] { IndexedDataset(folder / "a"); });
  }
  TemporaryFolder folder;
  std::string idx, bin;
};

TEST_F(BrokenDataset, IsWhatTheOffsetsSay) { EXPECT_EQ(idx.size(), 82u); }

TEST_F(BrokenDataset, MissingFileIsNamed) {
  std::filesystem::remove(folder / "a.bin");
  EXPECT_THAT(message_of<MissingError>([&] { IndexedDataset(folder / "a"); }),
              AllOf(HasSubstr(folder / "a.bin"), HasSubstr("cartan tokenize")));
  EXPECT_THAT(message_of<MissingError>([&] { IndexedDataset(folder / "b"); }), HasSubstr(folder / "b.idx"));
}

TEST_F(BrokenDataset, EmptyIndex) {
  idx.clear();
  EXPECT_THAT(message(), AllOf(HasSubstr("a.idx"), HasSubstr("empty")));
}

TEST_F(BrokenDataset, ForeignMagic) {
  idx = "{\"text\": \"a JSON file\"}";
  EXPECT_THAT(message(), AllOf(HasSubstr("expected it to begin with MMIDIDX"), HasSubstr("{\"text\": ")));
  idx = "TN";
  EXPECT_THAT(message(), HasSubstr("found \"TN\""));
}

TEST_F(BrokenDataset, CutInTheHeader) {
  idx.resize(20);
  EXPECT_THAT(message(),
              AllOf(HasSubstr("20 bytes"), HasSubstr("at least 34"), HasSubstr("copy the file again")));
}

TEST_F(BrokenDataset, WrongVersion) {
  set<std::uint64_t>(9, 2);
  EXPECT_THAT(message(), HasSubstr("index version 2, expected 1"));
}

TEST_F(BrokenDataset, TypeThatIsNoInteger) {
  set<std::uint8_t>(17, 6);
  EXPECT_THAT(message(), HasSubstr("holds fp64 values"));
  set<std::uint8_t>(17, 7);
  EXPECT_THAT(message(), HasSubstr("holds fp32 values"));
  set<std::uint8_t>(17, 0);
  EXPECT_THAT(message(), HasSubstr("unknown type code 0"));
  set<std::uint8_t>(17, 9);
  EXPECT_THAT(message(), HasSubstr("unknown type code 9"));
}

TEST_F(BrokenDataset, CountsThatOverflow) {
  for (const std::uint64_t count : {std::uint64_t{1} << 63, ~std::uint64_t{0}, ~std::uint64_t{0} / 12 + 1,
                                    std::uint64_t{1} << 61, std::uint64_t{5}}) {
    set<std::uint64_t>(18, count);
    EXPECT_THAT(message(), HasSubstr(fmt::format("{} sequences and 3 document indices", count)));
    set<std::uint64_t>(18, 2);
    set<std::uint64_t>(26, count);
    EXPECT_THAT(message(), HasSubstr(fmt::format("2 sequences and {} document indices", count)));
    set<std::uint64_t>(26, 3);
  }
}

TEST_F(BrokenDataset, NoDocumentIndices) {
  idx.resize(58);
  set<std::uint64_t>(26, 0);
  EXPECT_THAT(message(), HasSubstr("no document indices"));
}

TEST_F(BrokenDataset, SurplusThatIsNoModes) {
  idx += "xyz";
  EXPECT_THAT(message(), AllOf(HasSubstr("take 82 bytes (with modes 84), found 85")));
}

TEST_F(BrokenDataset, NegativeLength) {
  set<std::int32_t>(38, -2);
  EXPECT_THAT(message(), HasSubstr("sequence 1 has the length -2"));
}

TEST_F(BrokenDataset, OffsetsThatAreNotContiguous) {
  set<std::int64_t>(50, 4);
  EXPECT_THAT(message(), AllOf(HasSubstr("sequence 1 begins at byte 4"), HasSubstr("expected 6")));
}

TEST_F(BrokenDataset, TokensThatAreCut) {
  bin.resize(9);
  EXPECT_THAT(message(),
              AllOf(HasSubstr("a.bin: cut: 9 bytes"), HasSubstr("sequence 1 of 2"), HasSubstr("byte 10")));
  bin.clear();
  EXPECT_THAT(message(), HasSubstr("a.bin: cut: 0 bytes"));
}

TEST_F(BrokenDataset, TokensThatAreTooMany) {
  bin += "zz";
  EXPECT_THAT(message(),
              AllOf(HasSubstr("12 bytes"), HasSubstr("take 10"), HasSubstr("do not belong together")));
}

TEST_F(BrokenDataset, DocumentIndicesThatAreNotMonotone) {
  set<std::int64_t>(66, 3);
  EXPECT_THAT(message(), HasSubstr("document index 1 is 3, expected 0 (the one before) to 2"));
  set<std::int64_t>(66, 1);
  set<std::int64_t>(58, 1);
  EXPECT_THAT(message(), HasSubstr("document 0 begins with sequence 1, expected 0"));
  set<std::int64_t>(58, 0);
  set<std::int64_t>(74, 1);
  EXPECT_THAT(message(), HasSubstr("end with sequence 1, expected 2"));
  set<std::int64_t>(66, -1);
  EXPECT_THAT(message(), HasSubstr("document index 1 is -1"));
}

TEST_F(BrokenDataset, FolderInPlaceOfAFile) {
  std::filesystem::remove(folder / "a.idx");
  std::filesystem::create_directory(folder / "a.idx");
  EXPECT_THROW(IndexedDataset(folder / "a"), IoError);
}

}  // namespace
}  // namespace cartan::data
