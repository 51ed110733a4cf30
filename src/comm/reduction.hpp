// The canonical sum of one vector over a group, as a program: in which order the ranks' slots are pushed on
// the tree's stack and where they merge. All back ends run the same program, so all give the same bits.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "cartan/comm/communicator.hpp"

namespace cartan::comm {

/// One value of the program: slot `slot` of rank `rank`; before it is pushed, it is added to the `merges`
/// topmost values.
struct PlannedValue {
  int rank = 0;
  int slot = 0;
  int merges = 0;
};

/// What decides a plan, beside the slots' addresses.
struct ReductionShape {
  Index tree_leaves = 0;
  LeafRange leaves;
  int parts = 1, shard = 0, size = 1;

  using Key = std::tuple<Index, Index, Index, int, int, int>;
  Key key() const { return {tree_leaves, leaves.begin, leaves.end, parts, shard, size}; }
};
ReductionShape shape_of(const PartialSums& sums, int size);

struct ReductionPlan {
  ReductionShape shape;
  std::vector<PlannedValue> values;
  std::vector<int> slots_of_rank;         ///< values that each rank contributes; 0 where it has no leaf
  int depth_before = 0, depth_after = 0;  ///< of the owner's stack
  int max_depth = 0;                      ///< deepest stack in between

  int size() const { return static_cast<int>(slots_of_rank.size()); }
  int most_slots() const;
  LeafRange chunk(Index count, int rank) const { return chunk_range(count, rank, size(), shape.shard); }
};

/// Of the entries of the owner's stack before (numbers 0 ... depth_before), followed by the plan's values
/// (from depth_before on): where the run begins that makes up each entry afterwards, and the end of the last.
/// A run is a sum of its own. Entry i is made of none of the entries below it, so entries may be replaced
/// from the first to the last.
std::vector<int> entry_runs(const ReductionPlan& plan);

/// O(leaves + size).
ReductionPlan plan_reduction(const ReductionShape& shape);
/// What the ranks [first, end) of the group, whole holders, can sum of it alone: from an empty stack to that
/// of their leaves. They are numbered from 0 in it.
ReductionPlan plan_alone(const ReductionShape& shape, int first, int end);

/// The part of an owner's chunk that round `round` exchanges, in pieces of `piece` elements.
LeafRange piece_of(LeafRange chunk, Index round, Index piece);

/// The plans of one group, made when first asked for. Not thread-safe.
class PlanCache {
 public:
  /// Throws InternalError where rank `rank` of `size` brings fewer slots than it has partial sums. `name`:
  /// the group's.
  std::shared_ptr<const ReductionPlan> of(const PartialSums& sums, int rank, int size,
                                          const std::string& name);

 private:
  std::map<ReductionShape::Key, std::shared_ptr<const ReductionPlan>> plans_;
};

/// Sums arrays by a plan, block by block, so that partial results stay in the first-level cache.
class Folder {
 public:
  explicit Folder(const ReductionPlan& plan);

  /// Pushes values[v][0 ... count), v in the plan's order, on the stack. Where it ends with one entry, that
  /// may be one of the values, and is copied to `further`; those may be values too, provided nothing else
  /// reads them meanwhile.
  void fold(std::span<const float* const> values, std::span<float* const> stack,
            std::span<float* const> further, Index count);

 private:
  void fold_block(std::span<const float* const> values, std::span<float* const> stack, Index first,
                  Index count);

  const ReductionPlan& plan_;
  std::vector<float> scratch_;  // one block for each depth of the stack
  std::vector<const float*> stack_;
};

}  // namespace cartan::comm
