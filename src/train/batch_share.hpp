// Which sequences of the global batch a rank computes when, and how their gradients are summed.
#pragma once

#include <vector>

#include "cartan/data/loader.hpp"
#include "cartan/shard/flat_layout.hpp"
#include "cartan/train/config.hpp"

namespace cartan::train {

/// The ZeRO stage that makes a difference: a plane of one rank has nothing to share.
shard::ShardPlace shard_place(const Config& config, int plane_rank);

/// The batch among the holders of whole sequences, the places of dp.
class BatchShare {
 public:
  /// Where gradients are reduced after each micro-batch, those of one micro-batch lie next to each other over
  /// all holders, so that the owners' sums grow along the canonical tree.
  BatchShare(const Config& config, bool is_transient, int holder);

  const data::LeafShare& leaves() const { return leaves_; }
  /// Fold plan of each micro-batch.
  const std::vector<FoldPlan>& folds() const { return folds_; }
  /// The sequences that all holders compute at the time of a micro-batch.
  LeafRange together(Index micro_batch) const;
  /// Gradient slots that any holder needs: exchange memory has the same layout on all.
  int slots() const { return slots_; }
  /// Entries of the owners' stacks of sums, where gradients are reduced after each micro-batch.
  int owned_slots() const { return owned_slots_; }

 private:
  data::LeafShare leaves_of(int holder) const;
  std::vector<FoldPlan> folds_of(const data::LeafShare& leaves) const;

  Index global_, micro_;
  int holders_;
  bool is_transient_;
  data::LeafShare leaves_;
  std::vector<FoldPlan> folds_;
  int slots_ = 1, owned_slots_ = 1;
};

}  // namespace cartan::train
