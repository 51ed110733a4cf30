// Golden bytes, and what is left after a failure: the old dataset or nothing.
#include "cartan/data/indexed_dataset_writer.hpp"

#include <sys/resource.h>

#include <csignal>

#include "cartan/core/error.hpp"
#include "cartan/core/json.hpp"
#include "data_test_support.hpp"

namespace cartan::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::string kGolden = std::string(CARTAN_GOLDEN_DIR) + "/megatron/";

TEST(IndexedDatasetWriter, WritesMegatronsBytes) {
  const TemporaryFolder folder;
  const Json datasets = read_json(kGolden + "expected.json")["datasets"];
  for (const auto& [name, expected] : datasets.items()) {
    SCOPED_TRACE(name);
    IndexedDatasetWriter writer(folder / name, static_cast<TokenType>(expected["dtype_code"].get<int>()));
    const auto sequences = expected["sequences"].get<Documents>();
    const auto indices = expected["document_indices"].get<std::vector<std::size_t>>();
    for (std::size_t d = 0; d + 1 < indices.size(); ++d) {
      for (std::size_t s = indices[d]; s < indices[d + 1]; ++s) {
        writer.add_tokens(sequences[s]);
        writer.end_sequence();
      }
      writer.end_document();
    }
    writer.finish();
    std::string idx = read_file(kGolden + name + ".idx");
    if (!expected["modes"].is_null())
      idx.resize(idx.size() - sequences.size());  // modes are read, not written
    EXPECT_EQ(read_file(folder / (name + ".idx")), idx);
    EXPECT_EQ(read_file(folder / (name + ".bin")), read_file(kGolden + name + ".bin"));
  }
  EXPECT_EQ(folder.names().size(), 2 * datasets.size());
}

TEST(IndexedDatasetWriter, ForgetsADroppedDocument) {
  const TemporaryFolder folder;
  const std::vector<std::int32_t> small{1, 2, 3};
  const std::vector<std::int32_t> large(3'000'000, 7);  // more than the buffer
  for (const auto& dropped : {small, large}) {
    IndexedDatasetWriter writer(folder / "a", TokenType::u8);
    writer.add_tokens(small);
    writer.end_document();
    writer.add_tokens(dropped);
    writer.end_sequence();
    writer.add_tokens(dropped);
    writer.drop_document();
    writer.add_tokens(std::vector<std::int32_t>{4});
    writer.end_document();
    writer.finish();
    const IndexedDataset dataset(folder / "a");
    EXPECT_THAT(all_tokens(dataset), ElementsAre(1, 2, 3, 4));
    EXPECT_EQ(dataset.documents(), 2);
  }
}

TEST(IndexedDatasetWriter, RefusesAnIdThatDoesNotFitTheType) {
  const TemporaryFolder folder;
  IndexedDatasetWriter writer(folder / "a", TokenType::u16);
  EXPECT_THAT(message_of<DataError>([&] {
                writer.add_tokens(std::vector<std::int32_t>{1, 65536});
              }),
              HasSubstr("token id 65536 does not fit type u16"));
  EXPECT_THROW(writer.add_tokens(std::vector<std::int32_t>{-1}), DataError);
}

TEST(IndexedDatasetWriter, LeavesNothingBehindWithoutFinish) {
  const TemporaryFolder folder;
  {
    IndexedDatasetWriter writer(folder / "a", TokenType::u16);
    writer.add_tokens(std::vector<std::int32_t>{1, 2});
    EXPECT_EQ(folder.names().size(), 1u);
  }
  EXPECT_THAT(folder.names(), IsEmpty());
}

TEST(IndexedDatasetWriter, ReplacesAnOldDatasetOnlyWhenItIsComplete) {
  const TemporaryFolder folder;
  write_documents(folder / "a", {{1, 2}});
  {
    IndexedDatasetWriter writer(folder / "a", TokenType::u16);
    writer.add_tokens(std::vector<std::int32_t>{9});
    writer.end_document();
  }
  EXPECT_THAT(all_tokens(IndexedDataset(folder / "a")), ElementsAre(1, 2));
  write_documents(folder / "a", {{3}});
  EXPECT_THAT(all_tokens(IndexedDataset(folder / "a")), ElementsAre(3));
  EXPECT_THAT(folder.names(), ElementsAre("a.bin", "a.idx"));
}

TEST(IndexedDatasetWriter, NamesAFolderThatIsMissingOrInTheWay) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of<IoError>([&] { IndexedDatasetWriter(folder / "none/a", TokenType::u16); }),
              testing::AllOf(HasSubstr("none/a.bin"), HasSubstr("create its folder first")));
  std::filesystem::create_directory(folder / "b.idx");
  EXPECT_THAT(message_of<IoError>([&] { IndexedDatasetWriter(folder / "b", TokenType::u16); }),
              HasSubstr("b.idx: it is a folder"));
}

/// Lets no file grow beyond `bytes` for the lifetime: what a quota or a full disk looks like.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST(IndexedDatasetWriter, FullDiskLeavesTheOldDatasetAndNothingElse) {
  const TemporaryFolder folder;
  write_documents(folder / "a", {{1, 2}});
  {
    const FileSizeLimit limit(4000);
    // In the tokens: 4001 bytes.
    EXPECT_THAT(message_of<IoError>([&] {
                  write_documents(folder / "a", {std::vector<std::int32_t>(4001, 1)}, TokenType::u8);
                }),
                HasSubstr("cannot write " + folder / "a.bin"));
    // In the index: 500 documents of one byte.
    EXPECT_THAT(
        message_of<IoError>([&] { write_documents(folder / "a", Documents(500, {1}), TokenType::u8); }),
        HasSubstr("cannot write " + folder / "a.idx"));
    // In the middle of streaming.
    EXPECT_THROW(write_documents(folder / "a", {std::vector<std::int32_t>(3 << 20, 1), {1}}, TokenType::u8),
                 IoError);
  }
  EXPECT_THAT(all_tokens(IndexedDataset(folder / "a")), ElementsAre(1, 2));
  EXPECT_THAT(folder.names(), ElementsAre("a.bin", "a.idx"));
}

}  // namespace
}  // namespace cartan::data
