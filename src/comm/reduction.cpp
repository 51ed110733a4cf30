// Plans and runs the canonical sum over the slots of all ranks.
#include "comm/reduction.hpp"

#include <algorithm>
#include <cstring>

#include "cartan/core/error.hpp"
#include "comm/add.hpp"

namespace cartan::comm {
namespace {

constexpr Index kBlock = 2048;  // floats: 8 KiB, so that a few of them share a 32 KiB cache

}  // namespace

int ReductionPlan::most_slots() const {
  return *std::max_element(slots_of_rank.begin(), slots_of_rank.end());
}

ReductionPlan plan_reduction(const CanonicalTree& tree, int size) {
  ReductionPlan plan;
  std::vector<TreeNode> stack;
  for (int rank = 0; rank < size; ++rank) {
    const LeafRange leaves = leaf_range(tree.leaves(), rank, size);
    const auto nodes = tree.stack_of_range(leaves.begin, leaves.end);
    plan.slots_of_rank.push_back(static_cast<int>(nodes.size()));
    for (std::size_t slot = 0; slot < nodes.size(); ++slot) {
      const int merges = tree.push(stack, nodes[slot]);
      plan.values.push_back({rank, static_cast<int>(slot), merges});
      plan.max_depth = std::max(plan.max_depth, static_cast<int>(stack.size()) + merges);
    }
  }
  CARTAN_ASSERT(stack.size() == 1);
  return plan;
}

Folder::Folder(const ReductionPlan& plan)
    : plan_(plan), scratch_(static_cast<std::size_t>(plan.max_depth * kBlock)) {}

void Folder::fold(std::span<const float* const> values, std::span<float* const> outs, Index count) {
  CARTAN_ASSERT(values.size() == plan_.values.size() && !outs.empty());
  for (Index first = 0; first < count; first += kBlock) {
    const Index block = std::min(kBlock, count - first);
    fold_block(values, outs[0] + first, first, block);
    for (float* out : outs.subspan(1)) {
      std::memcpy(out + first, outs[0] + first, static_cast<std::size_t>(block) * sizeof(float));
    }
  }
}

void Folder::fold_block(std::span<const float* const> values, float* out, Index first, Index count) {
  stack_.clear();
  for (std::size_t v = 0; v < values.size(); ++v) {
    const float* value = values[v] + first;
    for (int merge = 0; merge < plan_.values[v].merges; ++merge) {
      // The sum replaces its left operand on the stack and may overwrite it where that is scratch already.
      const auto depth = static_cast<Index>(stack_.size()) - 1;
      const bool is_last = v + 1 == values.size() && depth == 0;
      float* sum = is_last ? out : scratch_.data() + depth * kBlock;
      add(stack_.back(), value, sum, count);
      stack_.pop_back();
      value = sum;
    }
    stack_.push_back(value);
  }
  if (stack_.back() != out) std::memcpy(out, stack_.back(), static_cast<std::size_t>(count) * sizeof(float));
}

}  // namespace cartan::comm
