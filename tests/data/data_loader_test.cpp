// The stream is the same for any ranks, micro-batch and restart; faults arrive in order.
#include "cartan/data/loader.hpp"

#include <set>

#include "cartan/core/error.hpp"
#include "data_test_support.hpp"

namespace cartan::data {
namespace {

constexpr Index kGlobalBatch = 12;
constexpr Index kSteps = 7;

class DataLoader : public testing::Test {
 protected:
  DataLoader() {
    write_documents(folder / "a", counting_documents({40, 1, 100, 33}));
    write_documents(folder / "b", counting_documents({77, 0, 60}));
    auto a = std::make_shared<const IndexedDataset>(folder / "a");
    auto b = std::make_shared<const IndexedDataset>(folder / "b");
    sampler = std::make_shared<const Sampler>(
        std::vector<Corpus>{{a, {0, a->tokens()}, 2}, {b, {0, b->tokens()}, 1}},
        SamplerOptions{.seq = 5, .seed = 11, .shuffle = true, .vocab_size = 200});
  }

  LoaderOptions options(Index first_step, LeafRange leaves, Index micro) const {
    return {.first_step = first_step,
            .end_step = kSteps,
            .global_batch = kGlobalBatch,
            .share = {leaves.begin, leaves.end - leaves.begin, micro}};
  }

  /// The rows [step][leaf] of all arrays, as delivered; checks steps, leaves and sizes on the way.
  using Rows = std::vector<std::vector<Batch>>;
  void collect(const LoaderOptions& o, Rows& rows) const {
    BatchLoader loader(sampler, o);
    MicroBatch micro;
    for (Index step = o.first_step; step < o.end_step; ++step) {
      for (Index m = 0; m < o.share.micro_batches(); ++m) {
        const LeafRange leaves = o.share.of(m);
        const Index leaf = leaves.begin;
        ASSERT_TRUE(loader.next(micro));
        EXPECT_EQ(micro.step, step);
        EXPECT_EQ(micro.first_leaf, leaf);
        ASSERT_EQ(micro.batch.sequences, leaves.end - leaf);
        for (Index row = 0; row < micro.batch.sequences; ++row)
          rows[static_cast<std::size_t>(step)][static_cast<std::size_t>(leaf + row)] =
              row_of(micro.batch, row);
      }
    }
    EXPECT_FALSE(loader.next(micro));
    EXPECT_FALSE(loader.next(micro));
  }
  static Batch row_of(const Batch& batch, Index row) {
    const auto cut = [&](const std::vector<std::int32_t>& array) {
      return std::vector<std::int32_t>(array.begin() + row * batch.seq,
                                       array.begin() + (row + 1) * batch.seq);
    };
    return {
        1, batch.seq, cut(batch.tokens), cut(batch.targets), cut(batch.positions), cut(batch.document_start),
        {}};
  }
  static Rows no_rows() { return Rows(kSteps, std::vector<Batch>(kGlobalBatch)); }

  /// What the sampler gives for leaf j of step s, sample s * G + j.
  Rows expected() const {
    Rows rows = no_rows();
    for (Index step = 0; step < kSteps; ++step) {
      for (Index leaf = 0; leaf < kGlobalBatch; ++leaf) {
        Batch& batch = rows[static_cast<std::size_t>(step)][static_cast<std::size_t>(leaf)];
        sampler->fill(std::vector<Index>{step * kGlobalBatch + leaf}, batch);
      }
    }
    return rows;
  }

  TemporaryFolder folder;
  std::shared_ptr<const Sampler> sampler;
};

TEST_F(DataLoader, DeliversTheSameStreamForAnyRanksAndMicroBatch) {
  const Rows reference = expected();
  for (const Index ranks : {1, 2, 3, 4, 5, 12}) {
    for (const Index micro : {1, 2, 3, 5, 12, 100}) {
      Rows rows = no_rows();
      for (Index rank = 0; rank < ranks; ++rank)
        collect(options(0, leaf_range(kGlobalBatch, rank, ranks), micro), rows);
      EXPECT_EQ(rows, reference) << ranks << " ranks, micro-batch " << micro;
    }
  }
}

TEST_F(DataLoader, ContinuesTheStreamAtAnyStepOnOtherRanks) {
  const Rows reference = expected();
  for (Index stop = 0; stop <= kSteps; ++stop) {
    Rows rows = no_rows();
    LoaderOptions before = options(0, {0, kGlobalBatch}, 4);
    before.end_step = stop;
    collect(before, rows);
    for (Index rank = 0; rank < 5; ++rank) collect(options(stop, leaf_range(kGlobalBatch, rank, 5), 2), rows);
    EXPECT_EQ(rows, reference) << "stopped at step " << stop;
  }
}

TEST_F(DataLoader, AnotherGlobalBatchAfterARestartNeitherSkipsNorRepeatsSamples) {
  LoaderOptions o = options(3, {0, 7}, 7);
  o.global_batch = 7;
  o.sample_offset = 50 - 3 * 7;  // the three steps before took 50 samples
  BatchLoader loader(sampler, o);
  MicroBatch micro;
  Batch expected;
  for (Index first = 50; first < 50 + 4 * 7; first += 7) {
    ASSERT_TRUE(loader.next(micro));
    sampler->fill(std::vector<Index>{first, first + 1, first + 2, first + 3, first + 4, first + 5, first + 6},
                  expected);
    EXPECT_EQ(micro.batch, expected);
  }
  EXPECT_FALSE(loader.next(micro));
}

TEST_F(DataLoader, RankWithoutLeavesGetsNothing) {
  BatchLoader loader(sampler, options(0, {3, 3}, 1));
  MicroBatch micro;
  EXPECT_FALSE(loader.next(micro));
}

TEST_F(DataLoader, ReusesTheBuffersOfTheConsumer) {
  LoaderOptions o = options(0, {0, kGlobalBatch}, 1);
  BatchLoader loader(sampler, o);
  MicroBatch micro;
  std::set<const std::int32_t*> buffers;
  while (loader.next(micro)) buffers.insert(micro.batch.tokens.data());
  // The consumer's, those in the queue, the one being filled, and one on its way back.
  EXPECT_LE(static_cast<Index>(buffers.size()), o.depth + 3);
}

TEST_F(DataLoader, RethrowsAfterTheBatchesBeforeTheFault) {
  write_documents(folder / "bad", {{1, 2, 3, 4, 5, 6, 7, 8, 9, 1000, 11, 12, 13}});
  auto dataset = std::make_shared<const IndexedDataset>(folder / "bad");
  auto bad = std::make_shared<const Sampler>(
      std::vector<Corpus>{{dataset, {0, dataset->tokens()}, 0}},
      SamplerOptions{.seq = 3, .seed = 0, .shuffle = false, .vocab_size = 100});
  BatchLoader loader(bad, {.first_step = 0, .end_step = 4, .share = {0, 1}});
  MicroBatch micro;
  EXPECT_TRUE(loader.next(micro));
  EXPECT_TRUE(loader.next(micro));
  EXPECT_THROW(loader.next(micro), DataError);
  EXPECT_THAT(message_of<DataError>([&] { loader.next(micro); }), testing::HasSubstr("position 9"));
}

TEST_F(DataLoader, MayBeDestroyedAtAnyTime) {
  for (int taken = 0; taken < 5; ++taken) {
    BatchLoader loader(sampler, options(0, {0, kGlobalBatch}, 1));
    MicroBatch micro;
    for (int i = 0; i < taken; ++i) EXPECT_TRUE(loader.next(micro));
    EXPECT_GE(loader.waited_s(), 0);
  }
}

}  // namespace
}  // namespace cartan::data
