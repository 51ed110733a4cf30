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

TEST_P(CanonicalReduction, ShardsAndReplicasGetTheirChunks) {
  for (const int shard : {2, 3}) {
    if (comm_.size() % shard != 0) continue;
    const Index count = 9000, leaves = 11;
    const CanonicalTree tree(leaves);
    PartialSums sums = partial_sums(tree, count);
    sums.shard = shard;
    const auto whole = serial_sum(leaves, count);
    const LeafRange chunk = chunk_range(count, comm_.rank(), comm_.size(), shard);
    std::vector<float> out(static_cast<std::size_t>(chunk.end - chunk.begin));
    comm_.reduce_scatter(sums, {out.data()}, *stream_).wait();
    EXPECT_EQ(out, std::vector<float>(whole.begin() + chunk.begin, whole.begin() + chunk.end)) << shard;
  }
}

TEST_P(CanonicalReduction, PartsOfLeavesThatLieOnSeveralNodesAreSummedToo) {
  const int parts = comm_.size();  // every rank has a part of every leaf
  const Index count = 3000, leaves = 3;
  const CanonicalTree tree(leaves);
  std::vector<std::span<float>> slots{operand(static_cast<std::size_t>(count))};
  std::vector<float> expected(static_cast<std::size_t>(count));
  for (int rank = 0; rank < parts; ++rank) {
    const Values part = leaf_values(500 + rank, count);
    for (std::size_t i = 0; i < expected.size(); ++i)
      expected[i] = rank == 0 ? part.of[i] : expected[i] + part.of[i];
    if (rank == comm_.rank()) std::copy(part.of.begin(), part.of.end(), slots[0].begin());
  }
  comm_.all_reduce({&tree, {slots[0].data()}, count, {}, parts}, *stream_).wait();
  EXPECT_EQ(std::vector<float>(slots[0].begin(), slots[0].end()), expected);
}

CARTAN_EACH_WAY(CanonicalReduction);

class NodesFirst : public testing::Test {
 protected:
  /// What a reduce_scatter of one leaf a rank sends to other pretended nodes, from all ranks together.
  static std::int64_t crossing(bool messages, int ranks_per_node) {
    MpiOptions options = options_of(Way::messages);
    options.force_messages = messages;
    options.ranks_per_node = ranks_per_node;
    MpiCommunicator comm(duplicate(MPI_COMM_WORLD, "test"), "test", options);
    EXPECT_EQ(comm.uses_nodes(), !messages);
    const Index count = 1024 * 12;
    const CanonicalTree tree(comm.size());
    std::vector<float> slot(static_cast<std::size_t>(count)), out(slot);
    const auto stream = device::make_inline_stream("test");
    comm.reduce_scatter({&tree, {slot.data()}, count}, {out.data()}, *stream).wait();
    auto bytes = static_cast<std::int64_t>(comm.bytes_between_nodes());
    comm.sum({&bytes, 1});
    return bytes;
  }
};

TEST_F(NodesFirst, SendsAsManyTimesLessAcrossAsANodeHasRanks) {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size != 4) GTEST_SKIP() << "two nodes of two";
  // Each of 4 ranks sends two chunks of a quarter of 48 KiB, or its node's sum of one.
  EXPECT_EQ(crossing(true, 2), 4 * 2 * 12 * 1024);
  EXPECT_EQ(crossing(false, 2), 4 * 1 * 12 * 1024);
}

TEST_F(NodesFirst, IsLeftToMessagesWhereNodesHoldDifferentNumbersOfRanks) {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const int ranks_per_node : {1, 2, 3}) {
    MpiOptions options = options_of(Way::exchange);
    options.ranks_per_node = ranks_per_node;
    MpiCommunicator comm(duplicate(MPI_COMM_WORLD, "test"), "test", options);
    const bool regular = size % ranks_per_node == 0 && ranks_per_node > 1;
    EXPECT_EQ(comm.uses_nodes(), regular && size > ranks_per_node) << ranks_per_node;
    EXPECT_EQ(comm.uses_shared_memory(), size > 1 && size <= ranks_per_node) << ranks_per_node;
  }
}

TEST(NodeLayout, RanksOutOfOrderAreNotRegular) {
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size != 4) GTEST_SKIP() << "two nodes of two";
  const auto ordered = [&](int key) {
    MPI_Comm raw = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, 0, key, &raw);
    const CommHandle comm(raw);
    return find_nodes(comm.get(), "test", 2).ranks_per_node;
  };
  EXPECT_EQ(ordered(rank), 2);
  EXPECT_EQ(ordered(3 - rank), 2) << "backwards";
  EXPECT_EQ(ordered(rank % 2 * 2 + rank / 2), 1) << "from node to node";
}

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
