// The canonical sum of values on one process: what every other way of summing is compared with.
#pragma once

#include <vector>

#include "cartan/core/canonical_tree.hpp"

namespace cartan {

/// Sums values in canonical order as they arrive one leaf after another; T needs operator+.
template <class T>
class CanonicalSum {
 public:
  explicit CanonicalSum(Index leaves) : tree_(leaves) {}
  void push(TreeNode node, T value) {
    const int merges = tree_.push(nodes_, node);
    for (int i = 0; i < merges; ++i) {
      value = values_.back() + value;
      values_.pop_back();
    }
    values_.push_back(value);
  }
  void push_leaf(Index leaf, T value) { push({0, leaf}, value); }
  const std::vector<TreeNode>& nodes() const { return nodes_; }
  const std::vector<T>& values() const { return values_; }
  /// The sum of all leaves; all must have been pushed.
  T total() const { return values_.at(0); }

 private:
  CanonicalTree tree_;
  std::vector<TreeNode> nodes_;
  std::vector<T> values_;
};

}  // namespace cartan
