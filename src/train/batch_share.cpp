#include "train/batch_share.hpp"

#include <algorithm>

namespace cartan::train {

shard::ShardPlace shard_place(const Config& config, int plane_rank) {
  shard::ShardPlace place;
  place.rank = plane_rank;
  place.size = config.mesh.dp * config.mesh.context();
  place.width = config.zero.shard > 0 ? config.zero.shard : place.size;
  place.stage = place.width > 1 ? config.zero.stage : 0;
  if (config.mesh.rows > 1) {
    // The rows of a grid hold parts of each weight, whoever else does.
    if (config.zero.stage == 0) place.width = config.mesh.rows;
    place.stage = 3;
  }
  if (place.stage == 0) place.width = place.size;
  return place;
}

BatchShare::BatchShare(const Config& config, bool is_transient, int holder)
    : global_(config.batch.global),
      micro_(config.batch.micro),
      holders_(config.mesh.dp),
      is_transient_(is_transient),
      leaves_(leaves_of(holder)),
      folds_(folds_of(leaves_)) {
  for (int other = 0; other < holders_; ++other)
    slots_ = std::max(slots_, slots_needed(folds_of(leaves_of(other))));
  // Sums of rounded gradients, and those of a library, simply run on.
  if (!is_transient || config.precision.reduce != "fp32" || config.precision.sum != "canonical") return;
  const CanonicalTree tree(global_);
  for (Index end = micro_ * holders_; end <= global_; end += micro_ * holders_)
    owned_slots_ = std::max(owned_slots_, narrow<int>(tree.stack_of_range(0, end).size()));
}

data::LeafShare BatchShare::leaves_of(int holder) const {
  const LeafRange own = leaf_range(global_, holder, holders_);
  if (!is_transient_) return {own.begin, own.end - own.begin, micro_};
  return {holder * micro_, own.end - own.begin, micro_, holders_ * micro_};
}

std::vector<FoldPlan> BatchShare::folds_of(const data::LeafShare& leaves) const {
  const CanonicalTree tree(global_);
  if (!is_transient_) return plan_folds(tree, leaves.first, leaves.first + leaves.count, leaves.micro);
  std::vector<FoldPlan> folds;
  for (Index m = 0; m < leaves.micro_batches(); ++m) {
    const LeafRange range = leaves.of(m);
    folds.push_back(plan_folds(tree, range.begin, range.end, leaves.micro).front());
  }
  return folds;
}

LeafRange BatchShare::together(Index micro_batch) const {
  return {micro_batch * micro_ * holders_, (micro_batch + 1) * micro_ * holders_};
}

}  // namespace cartan::train
