#include "cartan/core/canonical_tree.hpp"
#include "support/canonical_sum.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace cartan {
namespace {

// A value that records the order of additions.
struct Term {
  std::string text;
  friend Term operator+(const Term& a, const Term& b) { return {"(" + a.text + "+" + b.text + ")"}; }
};

std::string whole_sum(Index leaves) {
  CanonicalSum<Term> sum(leaves);
  for (Index leaf = 0; leaf < leaves; ++leaf) sum.push_leaf(leaf, {std::to_string(leaf)});
  EXPECT_EQ(sum.values().size(), 1u);
  return sum.total().text;
}

TEST(CanonicalTree, AddsNeighboursFirst) {
  EXPECT_EQ(whole_sum(1), "0");
  EXPECT_EQ(whole_sum(2), "(0+1)");
  EXPECT_EQ(whole_sum(3), "((0+1)+2)");
  EXPECT_EQ(whole_sum(4), "((0+1)+(2+3))");
  EXPECT_EQ(whole_sum(7), "(((0+1)+(2+3))+((4+5)+6))");
}

TEST(CanonicalTree, StacksOfNeighbouringRangesJoinToTheSameSum) {
  for (Index leaves = 1; leaves <= 33; ++leaves) {
    const std::string expected = whole_sum(leaves);
    for (Index parts = 1; parts <= std::min<Index>(leaves, 9); ++parts) {
      CanonicalSum<Term> joined(leaves);
      for (Index part = 0; part < parts; ++part) {
        const LeafRange range = leaf_range(leaves, part, parts);
        CanonicalSum<Term> mine(leaves);
        for (Index leaf = range.begin; leaf < range.end; ++leaf) mine.push_leaf(leaf, {std::to_string(leaf)});
        EXPECT_EQ(mine.nodes(), CanonicalTree(leaves).stack_of_range(range.begin, range.end));
        for (std::size_t i = 0; i < mine.nodes().size(); ++i) joined.push(mine.nodes()[i], mine.values()[i]);
      }
      ASSERT_EQ(joined.values().size(), 1u) << leaves << " leaves in " << parts << " parts";
      EXPECT_EQ(joined.total().text, expected);
    }
  }
}

TEST(FoldPlan, ReplaysTheTreeForAnyMicroBatch) {
  for (Index leaves = 1; leaves <= 20; ++leaves) {
    const CanonicalTree tree(leaves);
    for (Index begin = 0; begin < leaves; begin += 3) {
      CanonicalSum<Term> expected(leaves);
      for (Index leaf = begin; leaf < leaves; ++leaf) expected.push_leaf(leaf, {std::to_string(leaf)});
      for (Index micro = 1; micro <= 6; ++micro) {
        const auto plans = plan_folds(tree, begin, leaves, micro);
        std::vector<Term> stack;
        Index leaf = begin;
        for (const FoldPlan& plan : plans) {
          EXPECT_EQ(plan.depth_before, static_cast<int>(stack.size()));
          for (const int merges : plan.merges) {
            Term value{std::to_string(leaf++)};
            for (int i = 0; i < merges; ++i) {
              value = stack.back() + value;
              stack.pop_back();
            }
            stack.push_back(value);
            EXPECT_LE(static_cast<int>(stack.size()), plan.max_depth);
          }
          EXPECT_EQ(plan.depth_after, static_cast<int>(stack.size()));
          EXPECT_LE(plan.depth_after, slots_needed(plans));
        }
        ASSERT_EQ(stack.size(), expected.values().size());
        for (std::size_t i = 0; i < stack.size(); ++i) EXPECT_EQ(stack[i].text, expected.values()[i].text);
      }
    }
  }
}

TEST(FoldPlan, PowerOfTwoMicroBatchesNeedOneSlotWhereTheyCoverTheRange) {
  EXPECT_EQ(slots_needed(plan_folds(CanonicalTree(8), 0, 8, 8)), 1);
  EXPECT_EQ(slots_needed(plan_folds(CanonicalTree(8), 0, 8, 4)), 1);
  EXPECT_EQ(slots_needed(plan_folds(CanonicalTree(8), 0, 8, 1)), 3);
}

TEST(LeafRange, CoversEveryLeafOnceInParts) {
  for (Index leaves = 0; leaves <= 12; ++leaves) {
    for (Index parts = 1; parts <= 14; ++parts) {
      Index next = 0;
      for (Index part = 0; part < parts; ++part) {
        const LeafRange range = leaf_range(leaves, part, parts);
        EXPECT_EQ(range.begin, next);
        EXPECT_GE(range.end, range.begin);
        next = range.end;
      }
      EXPECT_EQ(next, leaves);
    }
  }
}

}  // namespace
}  // namespace cartan
