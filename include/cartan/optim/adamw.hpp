// The optimizer over flat units: the squares of all gradients, and one AdamW update.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cartan/core/exact_sum.hpp"
#include "cartan/optim/config.hpp"
#include "cartan/shard/flat_state.hpp"

namespace cartan::optim {

class OffloadWindows;

class AdamW {
 public:
  AdamW(const OptimConfig& config, shard::FlatState& state);
  ~AdamW();

  void begin_step();

  /// Adds the squares of the parts of a unit's reduced gradient that no other rank adds. Squares are summed
  /// in blocks of device::kSumBlock elements.
  void add_squares(std::size_t unit);
  /// The sum of the blocks added since the last call, exactly: summed over all ranks it has the same bits for
  /// any number of them.
  ExactSum take_squares();

  /// Update number `update` (1-based) at rate `lr`; gradients are multiplied by `gradient_scale` first. Decay
  /// applies to matrices only. What this rank owns of the unit is updated.
  void update_unit(std::size_t unit, Index update, double lr, double gradient_scale);

  /// Blocks until the updates so far are in place.
  void settle();

  /// min(1, clip / (norm + 1e-6)), or 1 where clipping is off.
  double clip_factor(double norm) const;

  /// The first parameter whose reduced gradient has an element that is not finite; where updates are fused
  /// and the gradients are gone, the parameters of the first block whose sum of squares is not. Blocks; for
  /// diagnosis.
  std::optional<std::string> first_nonfinite_gradient() const;

 private:
  /// Elements of a unit.
  struct Piece {
    std::size_t unit = 0;
    LeafRange elements;
    Index first_block = 0;  ///< in block_sums_
  };
  std::vector<double> host_block_sums() const;
  std::optional<std::string> first_nonfinite_block() const;

  OptimConfig config_;
  shard::FlatState& state_;
  std::vector<Piece> pieces_;  ///< what this rank adds, by unit
  device::Buffer block_sums_;
  std::unique_ptr<OffloadWindows> windows_;  ///< where states are offloaded and the device wants copies
};

}  // namespace cartan::optim
