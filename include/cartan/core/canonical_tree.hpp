// The canonical order of sums: one fixed binary tree over the leaves 0 ... leaves-1 (the sequences of
// the global batch, or the blocks of a gradient norm). The shape depends on the number of leaves only, never
// on ranks, micro-batches or threads, so a sum has the same bits on every mesh.
//
// Node (level, index) covers the leaves [index * 2^level, (index + 1) * 2^level) that exist. A holder of a
// contiguous range of leaves keeps a stack of maximal complete nodes (at most 2 log2(leaves)); stacks of
// neighbouring ranges are joined by pushing one after the other.
#pragma once

#include <vector>

#include "cartan/core/types.hpp"

namespace cartan {

struct TreeNode {
  int level = 0;
  Index index = 0;
  friend bool operator==(const TreeNode&, const TreeNode&) = default;
};

/// Plain arithmetic over the shape of the tree; values are elsewhere.
class CanonicalTree {
 public:
  explicit CanonicalTree(Index leaves);
  Index leaves() const { return leaves_; }

  /// First leaf, and one past the last existing leaf, of a node.
  Index first_leaf(TreeNode node) const { return node.index << node.level; }
  Index end_leaf(TreeNode node) const;

  /// Pushes `node` on `stack`; returns how often the top value and the new value are to be added
  /// (left + right, in this order) before the result is pushed: pop, add, pop, add, ..., push.
  int push(std::vector<TreeNode>& stack, TreeNode node) const;

  /// The stack that a holder of the leaves [begin, end) has in the end.
  std::vector<TreeNode> stack_of_range(Index begin, Index end) const;

 private:
  Index leaves_;
  int root_level_;
};

/// What one micro-batch does to a holder's stack of partial sums. The holder's values lie in slots:
/// slot i holds the stack's i-th value. After the leaf number j of the micro-batch is computed, it is added
/// to the merges[j] topmost values, and the result becomes the new top.
struct FoldPlan {
  int depth_before = 0;     ///< values on the stack when the micro-batch begins
  int depth_after = 0;      ///< values on the stack when it ends
  int max_depth = 0;        ///< deepest stack in between
  std::vector<int> merges;  ///< one entry a leaf
};

/// Plans for a holder of the leaves [begin, end) that computes them in micro-batches of `micro` leaves
/// (the last one may be shorter).
std::vector<FoldPlan> plan_folds(const CanonicalTree& tree, Index begin, Index end, Index micro);
/// Slots that a holder needs between micro-batches: the largest depth_after.
int slots_needed(const std::vector<FoldPlan>& plans);

/// Range of `leaves` that part `part` of `parts` holds; contiguous, sizes differ by one at the most.
struct LeafRange {
  Index begin = 0, end = 0;
};
LeafRange leaf_range(Index leaves, Index part, Index parts);

}  // namespace cartan
