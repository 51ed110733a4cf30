// Plans and runs the canonical sum over the slots of all ranks.
#include "comm/reduction.hpp"

#include <algorithm>
#include <cstring>

#include "cartan/core/error.hpp"
#include "cartan/core/narrow.hpp"
#include "comm/add.hpp"

namespace cartan::comm {
namespace {

constexpr Index kBlock = 2048;  // floats: 8 KiB, so that a few of them share a 32 KiB cache

/// Pushes what the ranks [first, end) hold on `stack`.
ReductionPlan plan_ranks(const ReductionShape& shape, int first, int end, std::vector<TreeNode> stack) {
  const auto& [tree_leaves, leaves, parts, shard, size] = shape;
  CARTAN_ASSERT(parts > 0 && size % parts == 0 && leaves.begin >= 0 && leaves.end <= tree_leaves);
  CARTAN_ASSERT(first % parts == 0 && end % parts == 0);
  const CanonicalTree tree(tree_leaves);
  ReductionPlan plan;
  plan.shape = shape;
  plan.slots_of_rank.resize(static_cast<std::size_t>(end - first));
  plan.depth_before = plan.max_depth = static_cast<int>(stack.size());
  for (int holder = first / parts; holder < end / parts; ++holder) {
    const LeafRange own = leaf_range(leaves.end - leaves.begin, holder, size / parts);
    const auto nodes = tree.stack_of_range(leaves.begin + own.begin, leaves.begin + own.end);
    const int rank = holder * parts - first;
    for (std::size_t slot = 0; slot < nodes.size(); ++slot) {
      const int merges = tree.push(stack, nodes[slot]);
      // The parts of a node are summed one after another; the last one then takes part in the tree.
      for (int part = 0; part < parts; ++part)
        plan.values.push_back(
            {rank + part, static_cast<int>(slot), (part > 0 ? 1 : 0) + (part + 1 == parts ? merges : 0)});
      plan.max_depth = std::max(plan.max_depth, static_cast<int>(stack.size()) + merges);
    }
    for (int part = 0; part < parts; ++part)
      plan.slots_of_rank[narrow<std::size_t>(Index{rank} + part)] = static_cast<int>(nodes.size());
  }
  plan.depth_after = static_cast<int>(stack.size());
  return plan;
}

}  // namespace

int ReductionPlan::most_slots() const {
  return *std::max_element(slots_of_rank.begin(), slots_of_rank.end());
}

ReductionShape shape_of(const PartialSums& sums, int size) {
  const LeafRange all{0, sums.tree->leaves()};
  return {sums.tree->leaves(), sums.leaves.value_or(all), sums.parts, sums.shard, size};
}

ReductionPlan plan_reduction(const ReductionShape& shape) {
  const CanonicalTree tree(shape.tree_leaves);
  return plan_ranks(shape, 0, shape.size, tree.stack_of_range(0, shape.leaves.begin));
}

ReductionPlan plan_alone(const ReductionShape& shape, int first, int end) {
  return plan_ranks(shape, first, end, {});
}

std::vector<int> entry_runs(const ReductionPlan& plan) {
  std::vector<int> begins;
  int next = 0;
  for (; next < plan.depth_before; ++next) begins.push_back(next);
  for (const PlannedValue& value : plan.values) {
    int begin = next++;
    for (int merge = 0; merge < value.merges; ++merge) {
      begin = begins.back();
      begins.pop_back();
    }
    begins.push_back(begin);
  }
  begins.push_back(next);
  return begins;
}

LeafRange piece_of(LeafRange chunk, Index round, Index piece) {
  const Index begin = std::min(chunk.begin + round * piece, chunk.end);
  return {begin, std::min(begin + piece, chunk.end)};
}

std::shared_ptr<const ReductionPlan> PlanCache::of(const PartialSums& sums, int rank, int size,
                                                   const std::string& name) {
  CARTAN_ASSERT(sums.tree != nullptr && sums.count >= 0);
  const ReductionShape shape = shape_of(sums, size);
  auto& plan = plans_[shape.key()];
  if (plan == nullptr) plan = std::make_shared<const ReductionPlan>(plan_reduction(shape));
  const int needed = std::max(1, plan->slots_of_rank[static_cast<std::size_t>(rank)]);
  if (sums.slots.size() < static_cast<std::size_t>(needed)) {
    throw InternalError("{}: rank {} of {} holds {} partial sums of {} leaves, but brings {} slots", name,
                        rank, size, needed, sums.tree->leaves(), sums.slots.size());
  }
  return plan;
}

Folder::Folder(const ReductionPlan& plan)
    : plan_(plan),
      scratch_(static_cast<std::size_t>(Index{plan.max_depth} + 1) * static_cast<std::size_t>(kBlock)) {}

void Folder::fold(std::span<const float* const> values, std::span<float* const> stack,
                  std::span<float* const> further, Index count) {
  CARTAN_ASSERT(values.size() == plan_.values.size());
  CARTAN_ASSERT(stack.size() >= static_cast<std::size_t>(std::max(plan_.depth_before, plan_.depth_after)));
  CARTAN_ASSERT(further.empty() || plan_.depth_after == 1);
  for (Index first = 0; first < count; first += kBlock) {
    const Index block = std::min(kBlock, count - first);
    fold_block(values, stack, first, block);
    for (float* out : further) {
      std::memcpy(out + first, stack[0] + first, static_cast<std::size_t>(block) * sizeof(float));
    }
  }
}

void Folder::fold_block(std::span<const float* const> values, std::span<float* const> stack, Index first,
                        Index count) {
  stack_.clear();
  for (int i = 0; i < plan_.depth_before; ++i) stack_.push_back(stack[static_cast<std::size_t>(i)] + first);
  for (std::size_t v = 0; v < values.size(); ++v) {
    const float* value = values[v] + first;
    const int merges = plan_.values[v].merges;
    for (int merge = 0; merge < merges; ++merge) {
      // The sum replaces its left operand on the stack and may overwrite it where that is scratch already.
      const std::size_t depth = stack_.size() - 1;
      const bool is_last = v + 1 == values.size() && merge + 1 == merges;
      float* sum = is_last ? stack[depth] + first : scratch_.data() + static_cast<Index>(depth) * kBlock;
      add(stack_.back(), value, sum, count);
      stack_.pop_back();
      value = sum;
    }
    stack_.push_back(value);
  }
  for (std::size_t i = 0; i < stack_.size(); ++i) {
    float* const out = stack[i] + first;
    if (stack_[i] != out) std::memcpy(out, stack_[i], static_cast<std::size_t>(count) * sizeof(float));
  }
}

}  // namespace cartan::comm
