// The canonical sum of one vector over a group, as a program: in which order the ranks' slots are pushed on
// the tree's stack and where they merge. All back ends run the same program, so all give the same bits.
#pragma once

#include <span>
#include <vector>

#include "cartan/core/canonical_tree.hpp"

namespace cartan::comm {

/// One value of the program: slot `slot` of rank `rank`; before it is pushed, it is added to the `merges`
/// topmost values.
struct PlannedValue {
  int rank = 0;
  int slot = 0;
  int merges = 0;
};

struct ReductionPlan {
  std::vector<PlannedValue> values;
  std::vector<int> slots_of_rank;  ///< values that each rank contributes; 0 where it has no leaf
  int max_depth = 0;               ///< deepest stack

  int most_slots() const;
};

/// For ranks that hold leaf_range(tree.leaves(), r, size). O(leaves + size).
ReductionPlan plan_reduction(const CanonicalTree& tree, int size);

/// Sums arrays by a plan, block by block, so that partial results stay in the first-level cache.
class Folder {
 public:
  explicit Folder(const ReductionPlan& plan);

  /// outs[i][0 ... count) = sum of values[v][0 ... count), v in the plan's order. outs[0] may be one of the
  /// values; the other outs may be values too, provided nothing else reads them meanwhile.
  void fold(std::span<const float* const> values, std::span<float* const> outs, Index count);

 private:
  void fold_block(std::span<const float* const> values, float* out, Index first, Index count);

  const ReductionPlan& plan_;
  std::vector<float> scratch_;  // one block for each depth of the stack
  std::vector<const float*> stack_;
};

}  // namespace cartan::comm
