// The optimizer over flat units: the squares of all gradients, and one AdamW update.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cartan/core/exact_sum.hpp"
#include "cartan/device/ops.hpp"
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
  /// The sum of all squares of the step, exactly, as words in device memory (Ops::exact_sum): added up over
  /// all ranks they are the same for any number of them. Ready in the order of the compute stream.
  std::span<std::int64_t> sum_squares();
  /// Decides from these words on the step's update: of gradients times `scale` / *loss_scale (in device
  /// memory; null: 1), clipped, and none where they are not finite. The result lies in device memory; no host
  /// waits for it.
  const device::UpdateDecision* decide(double scale, const float* loss_scale);
  /// What was decided. Blocks.
  device::UpdateDecision decision() const;

  /// Update number `update` (1-based) at rate `lr`, as decided. Decay applies to matrices only. What this
  /// rank owns of the unit is updated.
  void update_unit(std::size_t unit, Index update, double lr);
  /// The same with gradients multiplied by `gradient_scale`, before anything is decided.
  void update_unit_now(std::size_t unit, Index update, double lr, double gradient_scale);

  /// Blocks until the updates so far are in place.
  void settle();

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
  void update(std::size_t unit, Index update, double lr, double gradient_scale,
              const device::UpdateDecision* decision);
  std::vector<double> host_block_sums() const;
  std::optional<std::string> first_nonfinite_block() const;

  OptimConfig config_;
  shard::FlatState& state_;
  std::vector<Piece> pieces_;  ///< what this rank adds, by unit
  device::Buffer block_sums_, squares_, decision_;
  std::unique_ptr<OffloadWindows> windows_;  ///< where states are offloaded and the device wants copies
};

}  // namespace cartan::optim
