// Windows, packed documents, epochs and weights on datasets small enough to check by hand.
#include "cartan/data/sampler.hpp"

#include <set>

#include "cartan/core/error.hpp"
#include "data_test_support.hpp"

namespace cartan::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::int32_t kNone = kIgnoredTarget;

class DataSampler : public testing::Test {
 protected:
  Corpus corpus(const std::string& name, const Documents& documents, std::uint64_t weight = 0) {
    write_documents(folder / name, documents);
    auto dataset = std::make_shared<const IndexedDataset>(folder / name);
    return {dataset, {0, dataset->tokens()}, weight};
  }
  TemporaryFolder folder;
};

TEST_F(DataSampler, CutsStoredOrderIntoWindowsThatShareOneToken) {
  const Sampler sampler({corpus("a", counting_documents({10}))},
                        {.seq = 4, .shuffle = false, .vocab_size = 10});
  EXPECT_EQ(sampler.samples(), 2);  // tokens 0-4 and 4-8; 9 is left over
  Batch batch;
  sampler.fill(std::vector<Index>{0, 1, 2}, batch);
  EXPECT_EQ(batch.sequences, 3);
  EXPECT_EQ(batch.seq, 4);
  EXPECT_THAT(batch.tokens, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3));
  EXPECT_THAT(batch.targets, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4));
  EXPECT_EQ(counted_targets(batch.targets), 12);
}

TEST_F(DataSampler, MarksThePackedDocuments) {
  // Documents {0 1 2}, {}, {3}, {4 5 6 7 8 9}, {10}.
  const Sampler sampler({corpus("a", counting_documents({3, 0, 1, 6, 1}))},
                        {.seq = 5, .shuffle = false, .vocab_size = 11});
  ASSERT_EQ(sampler.samples(), 2);
  Batch batch;
  sampler.fill(std::vector<Index>{0, 1}, batch);
  EXPECT_THAT(batch.tokens, ElementsAre(0, 1, 2, 3, 4, /**/ 5, 6, 7, 8, 9));
  EXPECT_THAT(batch.targets, ElementsAre(1, 2, kNone, kNone, 5, /**/ 6, 7, 8, 9, kNone));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 0, 0, /**/ 0, 1, 2, 3, 4));
  EXPECT_THAT(batch.document_start, ElementsAre(0, 0, 0, 3, 4, /**/ 0, 0, 0, 0, 0));
  EXPECT_EQ(counted_targets(batch.targets), 7);
}

TEST_F(DataSampler, SequenceOfOneTokenWorks) {
  const Sampler sampler({corpus("a", counting_documents({2, 1}))},
                        {.seq = 1, .shuffle = false, .vocab_size = 3});
  ASSERT_EQ(sampler.samples(), 2);
  Batch batch;
  sampler.fill(std::vector<Index>{0, 1}, batch);
  EXPECT_THAT(batch.targets, ElementsAre(1, kNone));
}

TEST_F(DataSampler, DocumentsOfSeveralSequencesAreOneDocument) {
  IndexedDatasetWriter writer(folder / "a", TokenType::i32);
  for (std::int32_t id = 0; id < 5; ++id) {
    writer.add_tokens({&id, 1});
    writer.end_sequence();
  }
  writer.end_document();
  writer.finish();
  auto dataset = std::make_shared<const IndexedDataset>(folder / "a");
  const Sampler sampler({{dataset, {0, 5}, 0}}, {.seq = 4, .shuffle = false, .vocab_size = 5});
  Batch batch;
  sampler.fill(std::vector<Index>{0}, batch);
  EXPECT_THAT(batch.targets, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 3));
}

TEST_F(DataSampler, CoversEverySampleOnceAnEpochInAnotherOrderEachTime) {
  const Sampler sampler({corpus("a", counting_documents({100, 201, 3}))},
                        {.seq = 3, .seed = 7, .vocab_size = 304});
  const Index n = sampler.samples();
  ASSERT_EQ(n, 101);
  std::vector<std::vector<Index>> epochs;
  for (Index epoch = 0; epoch < 3; ++epoch) {
    std::set<Index> seen;
    epochs.emplace_back();
    for (Index i = 0; i < n; ++i) {
      const Sampler::Location location = sampler.locate(epoch * n + i);
      EXPECT_EQ(location.epoch, epoch);
      EXPECT_EQ(location.first_token % 3, 0);
      seen.insert(location.first_token);
      epochs.back().push_back(location.first_token);
    }
    EXPECT_EQ(static_cast<Index>(seen.size()), n);
    EXPECT_EQ(*seen.rbegin(), 3 * (n - 1));
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  EXPECT_FALSE(std::is_sorted(epochs[0].begin(), epochs[0].end()));
}

TEST_F(DataSampler, OrderIsAFunctionOfSeedAndNumber) {
  const std::vector<Corpus> corpora{corpus("a", counting_documents({500}))};
  const Sampler one(corpora, {.seq = 3, .seed = 7, .vocab_size = 500});
  const Sampler same(corpora, {.seq = 3, .seed = 7, .vocab_size = 500});
  const Sampler other(corpora, {.seq = 3, .seed = 8, .vocab_size = 500});
  int different = 0;
  for (Index i = 399; i >= 0; --i) {
    EXPECT_EQ(one.locate(i), same.locate(i));
    different += one.locate(i) == other.locate(i) ? 0 : 1;
  }
  EXPECT_GT(different, 300);
}

TEST_F(DataSampler, WeightedCorporaRunTheirOwnEpochs) {
  const Sampler sampler({corpus("a", counting_documents({31}), 7), corpus("b", counting_documents({301}), 3)},
                        {.seq = 3, .vocab_size = 301});
  ASSERT_EQ(sampler.samples_of(0), 10);
  ASSERT_EQ(sampler.samples_of(1), 100);
  std::vector<std::multiset<Index>> seen(2);
  Index last_epoch = 0;
  for (Index i = 0; i < 100; ++i) {
    const Sampler::Location location = sampler.locate(i);
    seen[static_cast<std::size_t>(location.corpus)].insert(location.first_token);
    if (location.corpus == 0) last_epoch = location.epoch;
  }
  EXPECT_EQ(seen[0].size(), 70u);  // seven epochs of ten samples
  EXPECT_EQ(last_epoch, 6);
  for (Index window = 0; window < 10; ++window) EXPECT_EQ(seen[0].count(3 * window), 7u);
  EXPECT_EQ(std::set<Index>(seen[1].begin(), seen[1].end()).size(), 30u);
}

TEST_F(DataSampler, WithoutWeightsEverySampleComesOnceInAPass) {
  const Sampler sampler({corpus("a", counting_documents({31})), corpus("b", counting_documents({58}))},
                        {.seq = 3, .vocab_size = 58});
  std::set<std::pair<Index, Index>> seen;
  for (Index i = 0; i < sampler.samples(); ++i) {
    const Sampler::Location location = sampler.locate(i);
    EXPECT_EQ(location.epoch, 0);
    seen.emplace(location.corpus, location.first_token);
  }
  EXPECT_EQ(static_cast<Index>(seen.size()), 10 + 19);
}

TEST_F(DataSampler, RefusesAnIdBeyondTheVocabularyWhenItIsRead) {
  const Sampler sampler({corpus("a", {{1, 2, 3, 4, 5, 6, 99, 7, 8}})},
                        {.seq = 4, .shuffle = false, .vocab_size = 50});
  Batch batch;
  EXPECT_NO_THROW(sampler.fill(std::vector<Index>{0}, batch));
  EXPECT_THAT(message_of<DataError>([&] { sampler.fill(std::vector<Index>{1}, batch); }),
              AllOf(HasSubstr("a.bin"), HasSubstr("document 0, position 6"), HasSubstr("token id 99")));
}

TEST_F(DataSampler, RefusesACorpusThatIsTooSmall) {
  const Corpus small = corpus("a", counting_documents({8}));
  EXPECT_NO_THROW(Sampler({small}, {.seq = 7, .vocab_size = 8}));
  EXPECT_THAT(message_of<ConfigError>([&] { Sampler({small}, {.seq = 8, .vocab_size = 8}); }),
              AllOf(HasSubstr("8 tokens are too few"), HasSubstr("data.seq = 8"), HasSubstr("takes 9")));
  EXPECT_THAT(message_of<DataError>([&] { Sampler({corpus("b", {{}})}, {.seq = 8, .vocab_size = 8}); }),
              HasSubstr("holds no tokens"));
}

}  // namespace
}  // namespace cartan::data
