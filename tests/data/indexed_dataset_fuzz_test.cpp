// Damaged files must give an Error or a consistent dataset: no crash, no read beyond the mapping (the address
// sanitizer's build sees one), no endless loop.
#include <cstring>

#include "cartan/core/error.hpp"
#include "cartan/core/random.hpp"
#include "cartan/data/inspect.hpp"
#include "data_test_support.hpp"

namespace cartan::data {
namespace {

const std::string kGolden = std::string(CARTAN_GOLDEN_DIR) + "/megatron/";
const std::vector<std::string> kNames{"bytes_u8", "corpus_i32", "corpus_u16", "edges_i32",
                                      "long_i64", "modes_i32",  "wide_u16"};

/// Opens the pair and visits everything in it; true if that succeeded. Errors other than cartan's escape.
bool try_to_read(const std::string& prefix) {
  try {
    const IndexedDataset dataset(prefix);
    verify(dataset);
    Index tokens = 0;
    for (Index s = 0; s < dataset.sequences(); ++s) tokens += dataset.sequence_tokens(s).size();
    EXPECT_EQ(tokens, dataset.tokens());
    tokens = 0;
    for (Index d = 0; d < dataset.documents(); ++d) tokens += dataset.document_tokens(d).size();
    EXPECT_EQ(tokens, dataset.tokens());
    for (Index t = 0; t < dataset.tokens(); ++t) {
      const IndexRange range = dataset.document_tokens(dataset.document_of_token(t));
      EXPECT_TRUE(range.begin <= t && t < range.end);
    }
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// Plain writes of a new file: no sync for thousands of files, neither ours nor ext4's when a file is
/// truncated.
void put(const std::string& path, std::string_view content) {
  std::filesystem::remove(path);
  std::FILE* file = std::fopen(path.c_str(), "wb");
  ASSERT_NE(file, nullptr);
  ASSERT_EQ(std::fwrite(content.data(), 1, content.size(), file), content.size());
  std::fclose(file);
}

class Fuzz : public testing::TestWithParam<std::string> {
 protected:
  Fuzz() : idx(read_file(kGolden + GetParam() + ".idx")), bin(read_file(kGolden + GetParam() + ".bin")) {
    put(folder / "a.idx", idx);
    put(folder / "a.bin", bin);
  }
  TemporaryFolder folder;
  std::string idx, bin;
};

TEST_P(Fuzz, IntactFilesAreRead) { EXPECT_TRUE(try_to_read(folder / "a")); }

TEST_P(Fuzz, EveryTruncationOfTheIndexIsRefused) {
  // A multimodal index without its modes is a valid index.
  const std::size_t without_modes = idx.size() - (GetParam() == "modes_i32" ? 6 : 0);
  for (std::size_t size = 0; size < idx.size(); ++size) {
    put(folder / "a.idx", idx.substr(0, size));
    EXPECT_EQ(try_to_read(folder / "a"), size == without_modes) << size << " bytes";
  }
}

TEST_P(Fuzz, EveryTruncationOfTheTokensIsRefused) {
  for (std::size_t size = 0; size < bin.size(); ++size) {
    put(folder / "a.bin", bin.substr(0, size));
    EXPECT_FALSE(try_to_read(folder / "a")) << size << " bytes";
  }
}

TEST_P(Fuzz, RandomDamageToTheIndexIsRefusedOrHarmless) {
  const RandomStream random(17, GetParam());
  std::uint64_t draw = 0;
  int refused = 0;
  constexpr int kTrials = 600;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::string damaged = idx;
    const std::uint64_t changes = 1 + random.bits(draw++) % 4;
    for (std::uint64_t i = 0; i < changes; ++i) {
      const std::uint64_t bits = random.bits(draw++);
      const std::size_t at = bits % damaged.size();
      damaged[at] =
          static_cast<char>((bits >> 60) % 2 == 0 ? damaged[at] ^ (1 << ((bits >> 40) % 8)) : bits >> 48);
    }
    put(folder / "a.idx", damaged);
    refused += try_to_read(folder / "a") ? 0 : 1;
  }
  EXPECT_GT(refused, kTrials / 2);
}

TEST_P(Fuzz, ExtremeNumbersAnywhereInTheIndexAreRefusedOrHarmless) {
  const std::uint64_t extremes[] = {0,          1,          0x7f,       0x7fffffff, 0x80000000,
                                    0xffffffff, 1ull << 32, 1ull << 60, 1ull << 61, 1ull << 62,
                                    ~0ull >> 1, 1ull << 63, ~0ull,      ~0ull / 12, ~0ull / 8 + 1};
  for (std::size_t at = 9; at + 8 <= idx.size(); at += at < 34 ? 1 : 4) {
    for (const std::uint64_t value : extremes) {
      std::string damaged = idx;
      std::memcpy(damaged.data() + at, &value, sizeof value);
      put(folder / "a.idx", damaged);
      try_to_read(folder / "a");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, Fuzz, testing::ValuesIn(kNames));

}  // namespace
}  // namespace cartan::data
