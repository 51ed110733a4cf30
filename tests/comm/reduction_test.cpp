// The plan of a canonical reduction, run on one process over the slots of imagined ranks.
#include "comm/reduction.hpp"

#include <gtest/gtest.h>

#include "canonical_data.hpp"
#include "cartan/comm/communicator.hpp"

namespace cartan::comm {
namespace {

ReductionShape whole(Index leaves, int size) { return {leaves, {0, leaves}, 1, 0, size}; }

TEST(ReductionPlan, TwoRanksWithOneLeafEachAddOnce) {
  const ReductionPlan plan = plan_reduction(whole(2, 2));
  ASSERT_EQ(plan.values.size(), 2u);
  EXPECT_EQ(plan.values[0].merges, 0);
  EXPECT_EQ(plan.values[1].merges, 1);
  EXPECT_EQ(plan.slots_of_rank, (std::vector<int>{1, 1}));
}

TEST(ReductionPlan, RanksWithoutLeavesContributeNothing) {
  const ReductionPlan plan = plan_reduction(whole(1, 3));
  EXPECT_EQ(plan.slots_of_rank, (std::vector<int>{0, 0, 1}));
  EXPECT_EQ(slots_for(CanonicalTree(1), 3), 1);
}

TEST(ReductionPlan, SlotsForIsTheDeepestStackOfAnyRank) {
  // Six leaves on four ranks: [0,1) [1,3) [3,4) [4,6); leaves 1 and 2 are no siblings.
  EXPECT_EQ(slots_for(CanonicalTree(6), 4), 2);
  EXPECT_EQ(slots_for(CanonicalTree(8), 4), 1);
  EXPECT_EQ(slots_for(CanonicalTree(8), 1), 1);
}

TEST(Folder, GivesTheBitsOfTheSerialSumForAnyNumberOfRanks) {
  for (const Index leaves : {1, 2, 3, 5, 7, 8, 13}) {
    for (const Index count : {1, 1023, 2049}) {
      const std::vector<float> expected = serial_sum(leaves, count);
      for (int size = 1; size <= 6; ++size) {
        const ReductionPlan plan = plan_reduction(whole(leaves, size));
        std::vector<CanonicalSum<Values>> stacks;
        for (int rank = 0; rank < size; ++rank) stacks.push_back(stack_of(leaves, rank, size, count));
        std::vector<const float*> operands;
        for (const PlannedValue& value : plan.values) {
          const auto& stack = stacks[static_cast<std::size_t>(value.rank)];
          operands.push_back(stack.values()[static_cast<std::size_t>(value.slot)].of.data());
        }
        std::vector<float> out(expected.size()), copy(expected.size());
        float* const stack[] = {out.data()};
        float* const further[] = {copy.data()};
        Folder(plan).fold(operands, stack, further, count);
        EXPECT_EQ(out, expected) << leaves << " leaves on " << size << " ranks, " << count << " elements";
        EXPECT_EQ(copy, expected);
      }
    }
  }
}

TEST(Folder, MayOverwriteAnyOfItsValues) {
  const Index leaves = 7, count = 5000;
  const ReductionPlan plan = plan_reduction(whole(leaves, 3));
  for (std::size_t target = 0; target < plan.values.size(); ++target) {
    std::vector<std::vector<float>> values;
    for (const PlannedValue& value : plan.values) {
      values.push_back(
          stack_of(leaves, value.rank, 3, count).values()[static_cast<std::size_t>(value.slot)].of);
    }
    std::vector<const float*> operands;
    for (const auto& value : values) operands.push_back(value.data());
    float* const stack[] = {values[target].data()};
    Folder(plan).fold(operands, stack, {}, count);
    EXPECT_EQ(values[target], serial_sum(leaves, count)) << "over value " << target;
  }
}

TEST(Folder, GoesOnWithTheStackOfEarlierLeaves) {
  // Leaves arrive in batches, each shared among three ranks, as where gradients are reduced after each
  // micro-batch.
  const Index count = 3000;
  for (const Index batches : {1, 3, 4, 7}) {
    const Index leaves = 6 * batches;
    const CanonicalTree tree(leaves);
    std::vector<std::vector<float>> memory(12, std::vector<float>(static_cast<std::size_t>(count)));
    std::vector<float*> stack;
    for (auto& entry : memory) stack.push_back(entry.data());
    for (Index batch = 0; batch < batches; ++batch) {
      const LeafRange range{6 * batch, 6 * batch + 6};
      const ReductionPlan plan = plan_reduction({leaves, range, 1, 0, 3});
      std::vector<std::vector<float>> values;
      for (const PlannedValue& value : plan.values) {
        const LeafRange own = leaf_range(6, value.rank, 3);
        CanonicalSum<Values> sum(leaves);
        for (Index leaf = own.begin; leaf < own.end; ++leaf)
          sum.push_leaf(range.begin + leaf, leaf_values(range.begin + leaf, count));
        values.push_back(sum.values()[static_cast<std::size_t>(value.slot)].of);
      }
      std::vector<const float*> operands;
      for (const auto& value : values) operands.push_back(value.data());
      EXPECT_EQ(plan.depth_after, std::ssize(tree.stack_of_range(0, range.end)));
      Folder(plan).fold(operands, stack, {}, count);
    }
    EXPECT_EQ(memory[0], serial_sum(leaves, count)) << batches << " batches";
  }
}

TEST(Folder, OfNodesOfRanksGivesTheBitsOfTheSerialSumToo) {
  const Index count = 300;
  for (const Index leaves : {1, 2, 5, 7, 11, 13, 16, 29}) {
    const std::vector<float> expected = serial_sum(leaves, count);
    for (const auto& [nodes, ranks] : {std::pair(2, 2), {3, 2}, {4, 2}, {2, 3}, {3, 3}, {5, 4}}) {
      const ReductionShape group = whole(leaves, nodes * ranks);
      const ReductionPlan across = plan_reduction(whole(leaves, nodes));
      std::vector<std::vector<std::vector<float>>> stacks;  // of each node
      for (int node = 0; node < nodes; ++node) {
        const ReductionPlan plan = plan_alone(group, node * ranks, (node + 1) * ranks);
        ASSERT_EQ(plan.depth_after, across.slots_of_rank[static_cast<std::size_t>(node)]);
        std::vector<std::vector<float>> values;
        for (const PlannedValue& value : plan.values) {
          const auto held = stack_of(leaves, node * ranks + value.rank, nodes * ranks, count);
          values.push_back(held.values()[static_cast<std::size_t>(value.slot)].of);
        }
        std::vector<const float*> operands;
        for (const auto& value : values) operands.push_back(value.data());
        auto& memory = stacks.emplace_back(static_cast<std::size_t>(plan.depth_after),
                                           std::vector<float>(static_cast<std::size_t>(count)));
        std::vector<float*> stack;
        for (auto& entry : memory) stack.push_back(entry.data());
        Folder(plan).fold(operands, stack, {}, count);
      }
      std::vector<const float*> operands;
      for (const PlannedValue& value : across.values)
        operands.push_back(
            stacks[static_cast<std::size_t>(value.rank)][static_cast<std::size_t>(value.slot)].data());
      std::vector<float> out(expected.size());
      float* const stack[] = {out.data()};
      Folder(across).fold(operands, stack, {}, count);
      EXPECT_EQ(out, expected) << leaves << " leaves on " << nodes << " nodes of " << ranks;
    }
  }
}

TEST(ReductionPlan, PartsOfALeafAreSummedBeforeTheTree) {
  const ReductionPlan plan = plan_reduction({2, {0, 2}, 3, 0, 6});
  std::vector<int> ranks, merges;
  for (const PlannedValue& value : plan.values) {
    ranks.push_back(value.rank);
    merges.push_back(value.merges);
  }
  EXPECT_EQ(ranks, (std::vector<int>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(merges, (std::vector<int>{0, 1, 1, 0, 1, 2}));
}

TEST(ChunkRange, OfReplicasMakeUpTheChunkOfTheirShard) {
  for (const Index count : {0, 1, 5000, 123457})
    for (const int shard : {1, 2, 3, 4}) {
      const int replicas = 3, size = shard * replicas;
      for (int place = 0; place < shard; ++place) {
        const LeafRange whole = chunk_range(count, place, shard);
        Index next = whole.begin;
        for (int replica = 0; replica < replicas; ++replica) {
          const LeafRange part = chunk_range(count, replica * shard + place, size, shard);
          EXPECT_EQ(part.begin, next);
          next = part.end;
        }
        EXPECT_EQ(next, whole.end);
      }
    }
}

TEST(ChunkRange, CoversEveryElementOnceInWholeBlocks) {
  for (const Index count : {0, 1, 1023, 1024, 1025, 5000, 1 << 20}) {
    for (int size = 1; size <= 5; ++size) {
      Index next = 0;
      for (int rank = 0; rank < size; ++rank) {
        const LeafRange chunk = chunk_range(count, rank, size);
        EXPECT_EQ(chunk.begin, next);
        EXPECT_TRUE(chunk.begin % device::kSumBlock == 0 || chunk.begin == count);
        next = chunk.end;
      }
      EXPECT_EQ(next, count);
    }
  }
}

}  // namespace
}  // namespace cartan::comm
