// The optimizer over flat units: the norm of all gradients in canonical order, and one AdamW update.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cartan/comm/communicator.hpp"
#include "cartan/optim/config.hpp"
#include "cartan/shard/flat_state.hpp"

namespace cartan::optim {

class AdamW {
 public:
  /// `plane`: the ranks that hold replicas of the gradients and share the work of the norm.
  AdamW(const OptimConfig& config, shard::FlatState& state, comm::Communicator& plane);

  /// L2 norm over all gradients together (a tied matrix once), each multiplied by `scale`. Squares are summed
  /// in blocks of device::kSumBlock elements, blocks along a canonical tree: the bits do not depend on the
  /// ranks. Collective over the plane.
  double gradient_norm(double scale);
  /// The same in two parts: the squares of one unit's gradients, and the norm once every unit was added.
  void add_squares(std::size_t unit);
  double norm_of_squares(double scale);

  /// Update number `update` (1-based) at rate `lr`; gradients are multiplied by `gradient_scale` first. Decay
  /// applies to matrices only.
  void update(Index update, double lr, double gradient_scale);
  void update_unit(std::size_t unit, Index update, double lr, double gradient_scale);

  /// min(1, clip / (norm + 1e-6)), or 1 where clipping is off.
  double clip_factor(double norm) const;

  /// The first parameter whose reduced gradient has an element that is not finite; in a transient layout,
  /// where the gradients are gone, the parameters of the first block whose sum of squares is not. Blocks; for
  /// diagnosis.
  std::optional<std::string> first_nonfinite_gradient() const;

 private:
  std::vector<double> host_block_sums() const;
  std::optional<std::string> first_nonfinite_block() const;

  OptimConfig config_;
  shard::FlatState& state_;
  comm::Communicator& plane_;
  CanonicalTree tree_;
  device::Buffer block_sums_;
};

}  // namespace cartan::optim
