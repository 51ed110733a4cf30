// Sums over ranks have the bits of the serial canonical sum, whichever way the data moves.
#include <gtest/gtest.h>

#include "canonical_data.hpp"
#include "cartan/core/narrow.hpp"
#include "ways.hpp"

namespace cartan::comm {
namespace {

class CanonicalReduction : public EachWay {
 protected:
  /// This rank's stack in slots for `count` elements. Memory is allocated on every rank alike.
  PartialSums partial_sums(const CanonicalTree& tree, Index count) {
    PartialSums sums{&tree, {}, count};
    const auto stack = stack_of(tree.leaves(), comm_.rank(), comm_.size(), count);
    for (int slot = 0; slot < slots_for(tree, comm_.size()); ++slot) {
      const auto memory = operand(static_cast<std::size_t>(count));
      sums.slots.push_back(memory.data());
      if (static_cast<std::size_t>(slot) >= stack.values().size()) continue;
      const auto& values = stack.values()[static_cast<std::size_t>(slot)].of;
      std::copy(values.begin(), values.end(), memory.begin());
    }
    return sums;
  }

  std::vector<float> expected_chunk(Index leaves, Index count) const {
    const auto whole = serial_sum(leaves, count);
    const LeafRange chunk = chunk_range(count, comm_.rank(), comm_.size());
    return {whole.begin() + chunk.begin, whole.begin() + chunk.end};
  }
};

TEST_P(CanonicalReduction, AllReduceHasTheSerialBitsOnEveryRank) {
  for (const Index leaves : {1, comm_.size(), 7, 13}) {
    for (const Index count : {1, 1023, 1025, 5000}) {
      const CanonicalTree tree(leaves);
      const PartialSums sums = partial_sums(tree, count);
      comm_.all_reduce(sums, *stream_).wait();
      const std::vector<float> result(sums.slots[0], sums.slots[0] + count);
      EXPECT_EQ(result, serial_sum(leaves, count)) << leaves << " leaves, " << count << " elements";
    }
  }
}

TEST_P(CanonicalReduction, ReduceScatterHasTheSerialBitsOfTheChunk) {
  for (const Index leaves : {1, comm_.size(), 11}) {
    for (const Index count : {1, 1025, 5000}) {
      const CanonicalTree tree(leaves);
      const PartialSums sums = partial_sums(tree, count);
      const auto expected = expected_chunk(leaves, count);
      std::vector<float> out(expected.size());
      comm_.reduce_scatter(sums, {out.data()}, *stream_).wait();
      EXPECT_EQ(out, expected) << leaves << " leaves, " << count << " elements";
      const LeafRange chunk = chunk_range(count, comm_.rank(), comm_.size());
      comm_.reduce_scatter(sums, {sums.slots[0] + chunk.begin}, *stream_).wait();
      EXPECT_EQ(std::vector<float>(sums.slots[0] + chunk.begin, sums.slots[0] + chunk.end), expected)
          << "in place";
    }
  }
}

TEST_P(CanonicalReduction, TheOtherSlotsKeepTheirValues) {
  const Index leaves = 11, count = 3000;
  const CanonicalTree tree(leaves);
  const PartialSums sums = partial_sums(tree, count);
  comm_.all_reduce(sums, *stream_).wait();
  const auto stack = stack_of(leaves, comm_.rank(), comm_.size(), count);
  for (std::size_t slot = 1; slot < stack.values().size(); ++slot) {
    EXPECT_EQ(std::vector<float>(sums.slots[slot], sums.slots[slot] + count), stack.values()[slot].of);
  }
}

TEST_P(CanonicalReduction, ManyReductionsInARowDoNotOvertakeEachOther) {
  const CanonicalTree tree(comm_.size());
  const Index count = 2048;
  const auto memory = operand(static_cast<std::size_t>(count));
  for (int turn = 1; turn <= 50; ++turn) {
    std::fill(memory.begin(), memory.end(), static_cast<float>(turn * (comm_.rank() + 1)));
    comm_.all_reduce({&tree, {memory.data()}, count}, *stream_).wait();
    const auto expected = static_cast<float>(turn * comm_.size() * (comm_.size() + 1) / 2);
    ASSERT_EQ(std::count(memory.begin(), memory.end(), expected), count) << "turn " << turn;
  }
}

TEST_P(CanonicalReduction, AnEmptyVectorIsReducedToo) {
  const CanonicalTree tree(comm_.size());
  const auto memory = operand(1);
  comm_.all_reduce({&tree, {memory.data()}, 0}, *stream_).wait();
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
  std::vector<std::vector<float>> memory(16, std::vector<float>(expected.size()));
  std::vector<float*> stack;
  for (auto& entry : memory) stack.push_back(entry.data());
  std::vector<std::span<float>> slots;
  for (int slot = 0; slot < 2; ++slot) slots.push_back(operand(static_cast<std::size_t>(count)));
  for (Index batch = 0; batch < batches; ++batch) {
    const Index first = 2 * (batch * size + comm_.rank());
    CanonicalSum<Values> own(leaves);
    for (Index leaf = first; leaf < first + 2; ++leaf) own.push_leaf(leaf, leaf_values(leaf, count));
    for (std::size_t i = 0; i < own.values().size(); ++i)
      std::copy(own.values()[i].of.begin(), own.values()[i].of.end(), slots[i].begin());
    const PartialSums sums{&tree,
                           {slots[0].data(), slots[1].data()},
                           count,
                           LeafRange{2 * size * batch, 2 * size * (batch + 1)}};
    comm_.reduce_scatter(sums, stack, *stream_).wait();
  }
  EXPECT_EQ(memory[0], expected);
}

TEST_P(CanonicalReduction, PartsOfLeavesAreSummedInTheOrderOfRanks) {
  if (comm_.size() % 2 != 0) GTEST_SKIP() << "two ranks share each leaf";
  const Index count = 3000, leaves = comm_.size() / 2;
  const CanonicalTree tree(leaves);
  const auto memory = operand(static_cast<std::size_t>(count));
  const auto part = [&](int rank) { return leaf_values(1000 + rank, count); };
  const Values own = part(comm_.rank());
  std::copy(own.of.begin(), own.of.end(), memory.begin());
  CanonicalSum<Values> expected(leaves);
  for (int holder = 0; holder < leaves; ++holder)
    expected.push_leaf(holder, part(2 * holder) + part(2 * holder + 1));
  comm_.all_reduce({&tree, {memory.data()}, count, {}, 2}, *stream_).wait();
  EXPECT_EQ(std::vector<float>(memory.begin(), memory.end()), expected.total().of);
}

CARTAN_EACH_WAY(CanonicalReduction);

class ExactSumOfGroup : public testing::Test {
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
