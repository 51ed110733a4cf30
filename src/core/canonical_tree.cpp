// Shape arithmetic of the canonical summation tree.
#include "cartan/core/canonical_tree.hpp"

#include <algorithm>

#include "cartan/core/error.hpp"

namespace cartan {

CanonicalTree::CanonicalTree(Index leaves) : leaves_(leaves), root_level_(0) {
  CARTAN_ASSERT(leaves > 0);
  while ((Index{1} << root_level_) < leaves) ++root_level_;
}

Index CanonicalTree::end_leaf(TreeNode node) const {
  return std::min(leaves_, (node.index + 1) << node.level);
}

int CanonicalTree::push(std::vector<TreeNode>& stack, TreeNode node) const {
  int merges = 0;
  while (node.level < root_level_) {
    const bool is_left = node.index % 2 == 0;
    if (!is_left && !stack.empty() && stack.back() == TreeNode{node.level, node.index - 1}) {
      stack.pop_back();
      ++merges;
    } else if (!(is_left && ((node.index + 1) << node.level) >= leaves_)) {
      break;
    }  // else: the right sibling covers no leaf, so the node stands for its parent
    node = {node.level + 1, node.index / 2};
  }
  stack.push_back(node);
  return merges;
}

std::vector<TreeNode> CanonicalTree::stack_of_range(Index begin, Index end) const {
  std::vector<TreeNode> stack;
  for (Index leaf = begin; leaf < end; ++leaf) push(stack, {0, leaf});
  return stack;
}

std::vector<FoldPlan> plan_folds(const CanonicalTree& tree, Index begin, Index end, Index micro) {
  CARTAN_ASSERT(micro > 0);
  std::vector<FoldPlan> plans;
  std::vector<TreeNode> stack;
  for (Index first = begin; first < end; first += micro) {
    FoldPlan plan;
    plan.depth_before = static_cast<int>(stack.size());
    plan.max_depth = plan.depth_before;
    for (Index leaf = first; leaf < std::min(first + micro, end); ++leaf) {
      plan.merges.push_back(tree.push(stack, {0, leaf}));
      plan.max_depth = std::max(plan.max_depth, static_cast<int>(stack.size()));
    }
    plan.depth_after = static_cast<int>(stack.size());
    plans.push_back(std::move(plan));
  }
  return plans;
}

int slots_needed(const std::vector<FoldPlan>& plans) {
  int slots = 0;
  for (const FoldPlan& plan : plans) slots = std::max(slots, plan.depth_after);
  return slots;
}

LeafRange leaf_range(Index leaves, Index part, Index parts) {
  return {leaves * part / parts, leaves * (part + 1) / parts};
}

}  // namespace cartan
