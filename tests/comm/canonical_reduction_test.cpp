// Sums over ranks have the bits of the serial canonical sum, whichever way the data moves.
#include <gtest/gtest.h>

#include <algorithm>

#include "canonical_data.hpp"
#include "cartan/core/narrow.hpp"
#include "ways.hpp"

namespace cartan::comm {
namespace {

class CanonicalReduction : public EachWay {
 protected:
  /// What this rank brings.
  struct Partials {
    PartialSums sums;
    std::vector<Operand> slots;
  };

  /// This rank's stack in slots for `count` elements. Memory is allocated on every rank alike.
  Partials partial_sums(const CanonicalTree& tree, Index count) {
    Partials partials{{&tree, {}, count}, {}};
    const auto stack = stack_of(tree.leaves(), comm_.rank(), comm_.size(), count);
    for (int slot = 0; slot < slots_for(tree, comm_.size()); ++slot) {
      partials.slots.push_back(operand(static_cast<std::size_t>(count)));
      const Operand& memory = partials.slots.back();
      partials.sums.slots.push_back(memory.data());
      if (static_cast<std::size_t>(slot) >= stack.values().size()) continue;
      std::ranges::copy(stack.values()[static_cast<std::size_t>(slot)].of, memory.host().begin());
    }
    return partials;
  }
  void all_reduce(const PartialSums& sums) {
    run([&] { return comm_.all_reduce(sums, *stream_); });
  }
  void reduce_scatter(const PartialSums& sums, const std::vector<float*>& stack) {
    run([&] { return comm_.reduce_scatter(sums, stack, *stream_); });
  }

  LeafRange own_chunk(Index count, int shard = 0) const {
    return chunk_range(count, comm_.rank(), comm_.size(), shard);
  }
  static std::vector<float> cut(const std::vector<float>& whole, LeafRange chunk) {
    return {whole.begin() + chunk.begin, whole.begin() + chunk.end};
  }
  std::vector<float> expected_chunk(Index leaves, Index count) const {
    return cut(serial_sum(leaves, count), own_chunk(count));
  }
};

TEST_P(CanonicalReduction, AllReduceHasTheSerialBitsOnEveryRank) {
  for (const Index leaves : {1, comm_.size(), 7, 13}) {
    for (const Index count : {1, 1023, 1025, 5000}) {
      const CanonicalTree tree(leaves);
      const Partials partials = partial_sums(tree, count);
      all_reduce(partials.sums);
      EXPECT_EQ(partials.slots[0].values(), serial_sum(leaves, count))
          << leaves << " leaves, " << count << " elements";
    }
  }
}

TEST_P(CanonicalReduction, ReduceScatterHasTheSerialBitsOfTheChunk) {
  for (const Index leaves : {1, comm_.size(), 11}) {
    for (const Index count : {1, 1025, 5000}) {
      const CanonicalTree tree(leaves);
      const Partials partials = partial_sums(tree, count);
      const auto expected = expected_chunk(leaves, count);
      const Operand out = operand(expected.size());
      reduce_scatter(partials.sums, {out.data()});
      EXPECT_EQ(out.values(), expected) << leaves << " leaves, " << count << " elements";
      const LeafRange chunk = own_chunk(count);
      reduce_scatter(partials.sums, {partials.sums.slots[0] + chunk.begin});
      EXPECT_EQ(cut(partials.slots[0].values(), chunk), expected) << "in place";
    }
  }
}

TEST_P(CanonicalReduction, TheOtherSlotsKeepTheirValues) {
  const Index leaves = 11, count = 3000;
  const CanonicalTree tree(leaves);
  const Partials partials = partial_sums(tree, count);
  all_reduce(partials.sums);
  const auto stack = stack_of(leaves, comm_.rank(), comm_.size(), count);
  for (std::size_t slot = 1; slot < stack.values().size(); ++slot)
    EXPECT_EQ(partials.slots[slot].values(), stack.values()[slot].of);
}

TEST_P(CanonicalReduction, ManyReductionsInARowDoNotOvertakeEachOther) {
  const CanonicalTree tree(comm_.size());
  const Index count = 2048;
  const Operand memory = operand(static_cast<std::size_t>(count));
  for (int turn = 1; turn <= 50; ++turn) {
    std::ranges::fill(memory.host(), static_cast<float>(turn * (comm_.rank() + 1)));
    all_reduce({&tree, {memory.data()}, count});
    const auto expected = static_cast<float>(turn * comm_.size() * (comm_.size() + 1) / 2);
    ASSERT_EQ(std::ranges::count(memory.host(), expected), count) << "turn " << turn;
  }
}

TEST_P(CanonicalReduction, AnEmptyVectorIsReducedToo) {
  const CanonicalTree tree(comm_.size());
  const Operand memory = operand(1);
  all_reduce({&tree, {memory.data()}, 0});
  EXPECT_EQ(memory[0], 0.0f);
}

TEST_P(CanonicalReduction, TooFewSlotsAreADefect) {
  const CanonicalTree tree(4 * comm_.size());
  EXPECT_THROW(comm_.reduce_scatter({&tree, {}, 8}, {}, *stream_), InternalError);
}

TEST_P(CanonicalReduction, MicroBatchesMayBeReducedOneAfterAnother) {
  const int size = comm_.size();
  const Index count = 4100, batches = 3, leaves = 2 * size * batches;
  const CanonicalTree tree(leaves);
  const std::vector<float> expected = expected_chunk(leaves, count);
  std::vector<Operand> memory, slots;
  std::vector<float*> stack;
  for (int entry = 0; entry < 16; ++entry) {
    memory.push_back(operand(expected.size()));
    stack.push_back(memory.back().data());
  }
  for (int slot = 0; slot < 2; ++slot) slots.push_back(operand(static_cast<std::size_t>(count)));
  for (Index batch = 0; batch < batches; ++batch) {
    const Index first = 2 * (batch * size + comm_.rank());
    CanonicalSum<Values> own(leaves);
    for (Index leaf = first; leaf < first + 2; ++leaf) own.push_leaf(leaf, leaf_values(leaf, count));
    for (std::size_t i = 0; i < own.values().size(); ++i)
      std::ranges::copy(own.values()[i].of, slots[i].host().begin());
    reduce_scatter({&tree,
                    {slots[0].data(), slots[1].data()},
                    count,
                    LeafRange{2 * size * batch, 2 * size * (batch + 1)}},
                   stack);
  }
  EXPECT_EQ(memory[0].values(), expected);
}

TEST_P(CanonicalReduction, PartsOfLeavesAreSummedInTheOrderOfRanks) {
  if (comm_.size() % 2 != 0) GTEST_SKIP() << "two ranks share each leaf";
  const Index count = 3000, leaves = comm_.size() / 2;
  const CanonicalTree tree(leaves);
  const Operand memory = operand(static_cast<std::size_t>(count));
  const auto part = [&](int rank) { return leaf_values(1000 + rank, count); };
  std::ranges::copy(part(comm_.rank()).of, memory.host().begin());
  CanonicalSum<Values> expected(leaves);
  for (int holder = 0; holder < leaves; ++holder)
    expected.push_leaf(holder, part(2 * holder) + part(2 * holder + 1));
  all_reduce({&tree, {memory.data()}, count, {}, 2});
  EXPECT_EQ(memory.values(), expected.total().of);
}

TEST_P(CanonicalReduction, ShardsAndReplicasGetTheirChunks) {
  for (const int shard : {2, 3}) {
    if (comm_.size() % shard != 0) continue;
    const Index count = 9000, leaves = 11;
    const CanonicalTree tree(leaves);
    Partials partials = partial_sums(tree, count);
    partials.sums.shard = shard;
    const LeafRange chunk = own_chunk(count, shard);
    const Operand out = operand(static_cast<std::size_t>(chunk.end - chunk.begin));
    reduce_scatter(partials.sums, {out.data()});
    EXPECT_EQ(out.values(), cut(serial_sum(leaves, count), chunk)) << shard;
  }
}

TEST_P(CanonicalReduction, PartsOfLeavesThatLieOnSeveralNodesAreSummedToo) {
  const int parts = comm_.size();  // every rank has a part of every leaf
  const Index count = 3000, leaves = 3;
  const CanonicalTree tree(leaves);
  const Operand slot = operand(static_cast<std::size_t>(count));
  std::vector<float> expected(static_cast<std::size_t>(count));
  for (int rank = 0; rank < parts; ++rank) {
    const Values part = leaf_values(500 + rank, count);
    for (std::size_t i = 0; i < expected.size(); ++i)
      expected[i] = rank == 0 ? part.of[i] : expected[i] + part.of[i];
    if (rank == comm_.rank()) std::ranges::copy(part.of, slot.host().begin());
  }
  all_reduce({&tree, {slot.data()}, count, {}, parts});
  EXPECT_EQ(slot.values(), expected);
}

CARTAN_EACH_WAY(CanonicalReduction);

class ExactSumOfGroup : public ::testing::Test {
 protected:
  MpiCommunicator comm_{duplicate(MPI_COMM_WORLD, "test"), "test", options_of(Way::messages)};
};

TEST_F(ExactSumOfGroup, HasTheBitsOfOneRankHoweverTheSummandsAreSpread) {
  const RandomStream random(3, "exact sum");
  std::array<ExactSum, 2> serial, mine;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const double value = std::ldexp(random.uniform(i) - 0.5, static_cast<int>(i % 90) - 40);
    for (std::size_t which = 0; which < 2; ++which) {
      serial[which].add(value);
      if ((i * (which + 7)) % static_cast<std::uint64_t>(comm_.size()) ==
          static_cast<std::uint64_t>(comm_.rank()))
        mine[which].add(value);
    }
  }
  sum_exactly(comm_, mine);
  EXPECT_EQ(mine[0].value(), serial[0].value());
  EXPECT_EQ(mine[1].value(), serial[1].value());
}

}  // namespace
}  // namespace cartan::comm
