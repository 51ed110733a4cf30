// Fold plans as kernels and products take them.
#include "device/cuda/fold.hpp"

#include <algorithm>

#include "cartan/core/error.hpp"
#include "kernels/host.hpp"

namespace cartan::device::cuda {

int new_values(const FoldPlan& plan) {
  int in_slots = plan.depth_before, depth = plan.depth_before, most = 0;
  for (const int merges : plan.merges) {
    depth -= merges;
    in_slots = std::min(in_slots, depth);
    most = std::max(most, ++depth - in_slots);
  }
  return most;
}

}  // namespace cartan::device::cuda

namespace cartan::kernels {

Fold make_fold(const device::GradientView& view) {
  const FoldPlan& plan = *view.plan;
  if (plan.merges.size() > Fold::kMaxLeaves || view.slots.size() > Fold::kMaxSlots ||
      device::cuda::new_values(plan) > Fold::kMaxDepth)
    throw ConfigError(
        "a micro-batch of {} sequences (in {} gradient slots) is more than the cuda device sums at a time, "
        "{} "
        "sequences: use a smaller batch.micro",
        plan.merges.size(), view.slots.size(), Fold::kMaxLeaves);
  Fold fold{};
  for (std::size_t i = 0; i < view.slots.size(); ++i) fold.slots[i] = view.slots[i] + view.offset;
  fold.depth_before = plan.depth_before;
  fold.leaves = static_cast<int>(plan.merges.size());
  std::copy(plan.merges.begin(), plan.merges.end(), fold.merges);
  return fold;
}

}  // namespace cartan::kernels
