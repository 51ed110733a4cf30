// Samples into rows: nothing is lost, nothing is cut but what is too long, and the batch says who sees whom.
#include "cartan/data/packing.hpp"

#include <numeric>
#include <random>
#include <set>

#include "cartan/core/error.hpp"
#include "cartan/data/sampler.hpp"
#include "data_test_support.hpp"

namespace cartan::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::int32_t kNone = kIgnoredTarget;

/// Samples of the given lengths, tokens counting up; the last `counted` of each count.
std::shared_ptr<const IndexedDataset> dataset_of(const std::string& prefix, const std::vector<Index>& lengths,
                                                 Index counted = 1) {
  IndexedDatasetWriter writer(prefix, TokenType::i32, true);
  for (const auto& ids : counting_documents(lengths)) {
    std::vector<std::uint8_t> mask(ids.size(), 0);
    std::fill(mask.end() - std::min<std::ptrdiff_t>(counted, std::ssize(mask)), mask.end(), 1);
    writer.add_tokens(ids, mask);
    writer.end_document();
  }
  writer.finish();
  return std::make_shared<const IndexedDataset>(prefix);
}

class Packed : public testing::Test {
 protected:
  Packing packing_of(const std::vector<Index>& lengths, Index seq, bool shuffle = true,
                     std::uint64_t seed = 1, Index counted = 1) {
    dataset = dataset_of(folder / "a", lengths, counted);
    return pack(*dataset, {0, dataset->documents()}, seq, shuffle, seed);
  }
  TemporaryFolder folder;
  std::shared_ptr<const IndexedDataset> dataset;
};

TEST_F(Packed, TheLongestGoFirstAndShortOnesFillTheGaps) {
  // Places 3, 6, 4, 2, 5 in rows of 10: 6 4 | 5 3 2.
  const Packing packing = packing_of({4, 7, 5, 3, 6}, 10);
  ASSERT_EQ(packing.rows(), 2);
  EXPECT_THAT(packing.row(0), ElementsAre(1, 2));
  EXPECT_THAT(packing.row(1), ElementsAre(4, 0, 3));
  EXPECT_EQ(packing.places, 20);
  EXPECT_EQ(to_string(packing, 10), "5 samples in 2 sequences, 100.0 % of their places filled");
}

TEST_F(Packed, BestFitTakesTheTightestGap) {
  // Places 7, 6, 3, 4: 3 goes beside 7, not beside 6, so that 4 finds its place.
  const Packing packing = packing_of({8, 7, 4, 5}, 10);
  EXPECT_EQ(packing.rows(), 2);
}

TEST_F(Packed, StoredOrderIsKeptWithoutShuffling) {
  const Packing packing = packing_of({4, 7, 5, 3, 6}, 10, false);
  ASSERT_EQ(packing.rows(), 3);
  EXPECT_THAT(packing.row(0), ElementsAre(0, 1));
  EXPECT_THAT(packing.row(1), ElementsAre(2, 3));
  EXPECT_THAT(packing.row(2), ElementsAre(4));
}

TEST_F(Packed, EverySampleIsThereOnceAndFits) {
  std::mt19937 random(5);
  std::vector<Index> lengths(3000);
  for (Index& length : lengths) length = 2 + static_cast<Index>(random() % 60);
  for (const bool shuffle : {true, false}) {
    const Packing packing = packing_of(lengths, 64, shuffle);
    std::set<Index> seen;
    for (Index row = 0; row < packing.rows(); ++row) {
      Index places = 0;
      for (const Index sample : packing.row(row)) {
        EXPECT_TRUE(seen.insert(sample).second);
        places += lengths[static_cast<std::size_t>(sample)] - 1;
      }
      EXPECT_GT(places, 0);
      EXPECT_LE(places, 64);
    }
    EXPECT_EQ(seen.size(), lengths.size());
    const Index sum = std::accumulate(lengths.begin(), lengths.end(), Index{0}) - 3000;
    EXPECT_EQ(packing.places, sum);
    // Short samples fill what long ones leave.
    if (shuffle) {
      EXPECT_LE(packing.rows(), sum / 64 + sum / 64 / 50);  // 98 % of the places
    }
  }
}

TEST_F(Packed, TheSeedAloneDecides) {
  const std::vector<Index> lengths(200, 9);
  const Packing one = packing_of(lengths, 32, true, 1), same = packing_of(lengths, 32, true, 1),
                other = packing_of(lengths, 32, true, 2);
  EXPECT_EQ(one.samples, same.samples);
  EXPECT_NE(one.samples, other.samples);
}

TEST_F(Packed, LongSamplesAreCutAndUselessOnesLeftOut) {
  // 5 tokens fit into 4 places; of 9, the last three count, and those are cut away; one token predicts
  // nothing.
  const Packing packing = packing_of({5, 9, 1, 6}, 4, true, 1, 3);
  EXPECT_EQ(packing.cut, 1);
  EXPECT_EQ(packing.left_out, 2);
  EXPECT_EQ(packing.rows(), 2);
  EXPECT_THAT(to_string(packing, 4),
              testing::AllOf(HasSubstr("1 longer ones are cut to 5 tokens"), HasSubstr("2 are left out")));
  const Packing none = packing_of({1, 1}, 4);
  EXPECT_EQ(none.rows(), 0);
  EXPECT_EQ(
      message_of<DataError>([&] {
        Sampler({{dataset, {0, 2}, 0}}, {.seq = 4, .vocab_size = 9});
      }),
      folder / "a" + ": no sample has a token that counts among its first 5, so there is nothing to learn");
}

TEST_F(Packed, ARowSaysWhatIsPredictedAndWhatIsSeen) {
  // Samples {0 1 2}, {3 4}, {5 6 7 8}; the last two tokens of each count.
  dataset = dataset_of(folder / "a", {3, 2, 4}, 2);
  const Sampler sampler({{dataset, {0, dataset->tokens()}, 0}},
                        {.seq = 8, .shuffle = false, .vocab_size = 9});
  ASSERT_EQ(sampler.samples(), 1);
  Batch batch;
  sampler.fill(std::vector<Index>{0}, batch);
  EXPECT_THAT(batch.tokens, ElementsAre(0, 1, 3, 5, 6, 7, 0, 0));
  EXPECT_THAT(batch.targets, ElementsAre(1, 2, 4, kNone, 7, 8, kNone, kNone));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 0, 0, 1, 2, 0, 0));
  EXPECT_THAT(batch.document_start, ElementsAre(0, 0, 2, 3, 3, 3, 6, 7));
}

TEST_F(Packed, SamplesMixWithTextByWeight) {
  dataset = dataset_of(folder / "a", std::vector<Index>(10, 5));
  write_documents(folder / "b", counting_documents({41}));
  auto text = std::make_shared<const IndexedDataset>(folder / "b");
  const Sampler sampler({{dataset, {0, dataset->tokens()}, 1}, {text, {0, 41}, 3}},
                        {.seq = 8, .vocab_size = 50});
  EXPECT_EQ(sampler.samples_of(0), 5);
  EXPECT_EQ(sampler.samples_of(1), 5);
  EXPECT_NE(sampler.packing(0), nullptr);
  EXPECT_EQ(sampler.packing(1), nullptr);
  std::multiset<Index> rows;
  Batch batch;
  for (Index i = 0; i < 20; ++i) {
    const Sampler::Location location = sampler.locate(i);
    if (location.corpus == 0) rows.insert(location.number);
    sampler.fill({&i, 1}, batch);
    EXPECT_EQ(counted_targets(batch.targets), location.corpus == 0 ? 2 : 8);
  }
  EXPECT_EQ(rows, (std::multiset<Index>{0, 1, 2, 3, 4}));  // an epoch of five rows
}

TEST_F(Packed, APartOfADatasetPacksItsDocumentsOnly) {
  dataset = dataset_of(folder / "a", {5, 5, 5, 5});
  const Sampler sampler({{dataset, {10, 20}, 0}}, {.seq = 8, .shuffle = false, .vocab_size = 50});
  ASSERT_EQ(sampler.samples(), 1);
  EXPECT_THAT(sampler.packing(0)->row(0), ElementsAre(2, 3));
  EXPECT_EQ(sampler.locate(0).first_token, 10);
}

}  // namespace
}  // namespace cartan::data
