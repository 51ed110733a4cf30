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
      comm_.reduce_scatter(sums, out.data(), *stream_).wait();
      EXPECT_EQ(out, expected) << leaves << " leaves, " << count << " elements";
      const LeafRange chunk = chunk_range(count, comm_.rank(), comm_.size());
      comm_.reduce_scatter(sums, sums.slots[0] + chunk.begin, *stream_).wait();
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
  EXPECT_THROW(comm_.reduce_scatter({&tree, {}, 8}, nullptr, *stream_), InternalError);
}

CARTAN_EACH_WAY(CanonicalReduction);

class CanonicalSumOfGroup : public testing::Test {
 protected:
  MpiCommunicator comm_{duplicate(MPI_COMM_WORLD, "test"), "test", options_of(Way::messages)};
};

TEST_F(CanonicalSumOfGroup, HasTheSerialBitsForAnyContiguousRanges) {
  for (const Index leaves : {1, 2, 5, 13, 1000}) {
    const RandomStream random(3, "canonical sum");
    CanonicalSum<double> serial(leaves), mine(leaves);
    // Uneven on purpose: rank r ends at leaves * ((r + 1) / size)^2.
    const auto end_of = [&](int r) {
      const double part = static_cast<double>(r + 1) / comm_.size();
      return static_cast<Index>(part * part * static_cast<double>(leaves));
    };
    for (Index leaf = 0; leaf < leaves; ++leaf) {
      const double value =
          std::ldexp(random.uniform(static_cast<std::uint64_t>(leaf)) - 0.5, static_cast<int>(leaf % 40));
      serial.push_leaf(leaf, value);
      if (leaf >= end_of(comm_.rank() - 1) && leaf < end_of(comm_.rank())) mine.push_leaf(leaf, value);
    }
    EXPECT_EQ(canonical_sum(comm_, CanonicalTree(leaves), mine.nodes(), mine.values()), serial.total());
  }
}

TEST_F(CanonicalSumOfGroup, MissingLeavesAreADefectOnEveryRank) {
  std::vector<TreeNode> nodes;
  if (comm_.rank() == 0) nodes.push_back({0, 0});
  const std::vector<double> values(nodes.size(), 1.0);
  EXPECT_THROW(canonical_sum(comm_, CanonicalTree(9), nodes, values), InternalError);
}

}  // namespace
}  // namespace cartan::comm
