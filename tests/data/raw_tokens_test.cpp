// .bin files without index: those of llm.c by their header, others by what the user says.
#include <cstring>

#include "cartan/core/error.hpp"
#include "cartan/core/json.hpp"
#include "cartan/data/indexed_dataset.hpp"
#include "cartan/data/inspect.hpp"
#include "cartan/data/sampler.hpp"
#include "data_test_support.hpp"

namespace cartan::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// As dev/data/data_common.py of llm.c writes it.
std::string header(std::int32_t magic, std::int32_t version, std::int32_t tokens) {
  std::vector<std::int32_t> ints(256, 0);
  ints[0] = magic;
  ints[1] = version;
  ints[2] = tokens;
  return bytes_of(ints);
}

const std::vector<std::uint16_t> kNarrow = {7, 1, 2, 7, 3, 65535, 7};
const std::vector<std::uint32_t> kWide = {128000, 1, 128000, 2};

class RawTokens : public testing::Test {
 protected:
  std::string refusal(const std::string& content, const RawFormat& raw = {}) {
    folder.put("a.bin", content);
    return message_of<DataError>([&] { IndexedDataset(folder / "a.bin", raw); });
  }
  std::vector<Index> lengths(const IndexedDataset& dataset) {
    std::vector<Index> lengths;
    for (Index d = 0; d < dataset.documents(); ++d) lengths.push_back(dataset.document_tokens(d).size());
    return lengths;
  }
  TemporaryFolder folder;
};

TEST_F(RawTokens, FilesOfLlmCSayWhatTheyHold) {
  folder.put("a.bin", header(20240520, 1, 7) + bytes_of(kNarrow));
  const IndexedDataset narrow(folder / "a.bin");
  EXPECT_EQ(narrow.format(), "llm.c");
  EXPECT_EQ(narrow.token_type(), TokenType::u16);
  EXPECT_EQ(narrow.idx_bytes(), 0);
  EXPECT_THAT(all_tokens(narrow), ElementsAre(7, 1, 2, 7, 3, 65535, 7));
  EXPECT_THAT(lengths(narrow), ElementsAre(7));
  folder.put("b.bin", header(20240801, 7, 4) + bytes_of(kWide));
  const IndexedDataset wide(folder / "b.bin");
  EXPECT_EQ(wide.token_type(), TokenType::u32);
  EXPECT_THAT(all_tokens(wide), ElementsAre(128000, 1, 128000, 2));
  EXPECT_EQ(describe(wide, verify(wide))["max_id"], 128000);
}

TEST_F(RawTokens, AnEndIdBoundsDocuments) {
  folder.put("a.bin", bytes_of(kNarrow));
  const IndexedDataset raw(folder / "a.bin", {.type = TokenType::u16, .end_id = 7});
  EXPECT_EQ(raw.format(), "raw");
  EXPECT_THAT(lengths(raw), ElementsAre(1, 3, 3));
  EXPECT_EQ(raw.document_of_token(3), 1);
  EXPECT_EQ(raw.document_sequences(1), (IndexRange{1, 2}));
  EXPECT_EQ(raw.sequence_tokens(2), (IndexRange{4, 7}));
  // llm.c puts it before each document.
  folder.put("a.bin", header(20240520, 1, 7) + bytes_of(kNarrow));
  EXPECT_THAT(lengths(IndexedDataset(folder / "a.bin", {.end_id = 7})), ElementsAre(3, 3, 1));
  EXPECT_THAT(lengths(IndexedDataset(folder / "a.bin", {.end_id = 8})), ElementsAre(7));
}

TEST_F(RawTokens, AreTrainedOnLikeOthers) {
  folder.put("a.bin", bytes_of(kNarrow));
  auto dataset = std::make_shared<const IndexedDataset>(folder / "a.bin",
                                                        RawFormat{.type = TokenType::u16, .end_id = 7});
  const Sampler sampler({{dataset, {0, 7}, 0}}, {.seq = 6, .shuffle = false, .vocab_size = 65536});
  Batch batch;
  sampler.fill(std::vector<Index>{0}, batch);
  EXPECT_THAT(batch.targets, ElementsAre(kIgnoredTarget, 2, 7, kIgnoredTarget, 65535, 7));
  const Sampler small({{dataset, {0, 7}, 0}}, {.seq = 6, .shuffle = false, .vocab_size = 100});
  EXPECT_THAT(message_of<DataError>([&] { small.fill(std::vector<Index>{0}, batch); }),
              AllOf(HasSubstr("a.bin"), HasSubstr("token id 65535"), HasSubstr("0 to 99")));
}

TEST_F(RawTokens, TheWidthMustBeTold) {
  folder.put("a.bin", bytes_of(kNarrow) + "xx");
  EXPECT_THAT(message_of<ConfigError>([&] { IndexedDataset(folder / "a.bin"); }),
              AllOf(HasSubstr("a.bin"), HasSubstr("data.raw-type = u16"), HasSubstr("8 tokens"),
                    HasSubstr("4 tokens")));
  EXPECT_THAT(message_of<MissingError>([&] { IndexedDataset(folder / "a"); }),
              AllOf(HasSubstr("a.idx: no such file"), HasSubstr("a.bin: name it so")));
  EXPECT_THROW(IndexedDataset(folder / "none.bin"), MissingError);
}

TEST_F(RawTokens, AnIndexBesideItCounts) {
  write_documents(folder / "a", {{1, 2}, {3}});
  EXPECT_EQ(IndexedDataset(folder / "a.bin", {.type = TokenType::u32}).documents(), 2);
}

TEST_F(RawTokens, EmptyFilesHaveNoTokens) {
  folder.put("a.bin", "");
  const IndexedDataset empty(folder / "a.bin", {.type = TokenType::u16, .end_id = 0});
  EXPECT_EQ(empty.tokens(), 0);
  EXPECT_EQ(empty.documents(), 0);
}

TEST_F(RawTokens, SizesThatDoNotFitAreRefused) {
  EXPECT_THAT(refusal(bytes_of(kNarrow) + "x", {.type = TokenType::u16}),
              AllOf(HasSubstr("a.bin: 15 bytes"), HasSubstr("u16")));
  EXPECT_THAT(refusal(bytes_of(kNarrow), {.type = TokenType::u32}), HasSubstr("14 bytes"));
  const std::string good = header(20240520, 1, 7) + bytes_of(kNarrow);
  EXPECT_THAT(refusal(good.substr(0, 1000)), AllOf(HasSubstr("cut inside the header"), HasSubstr("1024")));
  EXPECT_THAT(refusal(good.substr(0, good.size() - 2)),
              AllOf(HasSubstr("announces 7 tokens of type u16, 14 bytes, found 12")));
  EXPECT_THAT(refusal(good + "ab"), HasSubstr("found 16"));
  EXPECT_THAT(refusal(header(20240520, 1, -7) + bytes_of(kNarrow)), HasSubstr("announces -7 tokens"));
  EXPECT_THAT(refusal(header(20240520, 2, 7) + bytes_of(kNarrow)), HasSubstr("version 2"));
  EXPECT_THAT(refusal(header(20240522, 1, 7)), HasSubstr("questions"));
}

TEST_F(RawTokens, IdsBeyond31BitsAreRefused) {
  folder.put("a.bin", bytes_of(std::vector<std::uint32_t>{1, 0x80000000U}));
  const IndexedDataset dataset(folder / "a.bin", {.type = TokenType::u32});
  EXPECT_THAT(message_of<DataError>([&] { all_tokens(dataset); }), HasSubstr("token id 2147483648"));
}

}  // namespace
}  // namespace cartan::data
