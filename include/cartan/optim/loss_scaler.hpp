// Dynamic loss scale for fp16. The loss is multiplied by a power of two before the backward pass, so that
// small gradients do not vanish; where some gradient overflows, the update is left out and, once the patience
// is used up, the scale halved; after a stretch of good steps it is doubled. Patience ("hysteresis"), window
// and minimum mean what they mean in DeepSpeed, step for step. Source: Micikevicius et al. 2018,
// arXiv:1710.03740.
#pragma once

#include "cartan/core/error.hpp"
#include "cartan/core/types.hpp"
#include "cartan/device/device.hpp"
#include "cartan/device/loss_scale.hpp"

namespace cartan::optim {

struct LossScaleConfig {
  /// false: the scale is 1 and an overflow is an error at once (fp32, bf16).
  bool enabled = false;
  double fixed = 0;        ///< the scale for good; 0: dynamic
  int initial_power = 16;  ///< the first scale is 2 to this power
  Index window = 1000;     ///< good steps before the scale doubles
  int hysteresis = 2;      ///< overflows until the scale halves: the last of them halves it. 1: each one does
  /// The hysteresis is filled up by every good step, and not only when the scale doubles.
  bool consecutive_hysteresis = false;
  double minimum = 1;  ///< the scale never falls below
  /// An overflow at the minimum is an error; false: it is one more step without an update.
  bool stops_at_minimum = true;
  Index most_skips = 100;  ///< steps without an update in a row; the next overflow is an error
};

/// Adds what is wrong, by the names of the keys precision.loss-scale...
void check(const LossScaleConfig& config, Problems& problems);

/// What a checkpoint keeps.
using LossScaleState = device::LossScaleState;

/// One on each rank; all of them see the same overflows, so all have the same scale. It lives in the device's
/// memory, where the end of a step moves it on; the host looks when it waits for the step anyway. Not
/// collective.
class LossScaler {
 public:
  /// `share` of the scale is what the loss is multiplied by.
  LossScaler(const LossScaleConfig& config, double share, device::Device& device);

  /// In device memory: what the loss of the next step is multiplied by. Null where scaling is off.
  const float* of_loss() const;
  /// Ends a step on the compute stream: an update that the device decides not to apply is an overflow.
  void update(const device::UpdateDecision* decision);
  /// After update(): waits, and returns the scale of the step that has ended. `overflow`: what was decided.
  /// Throws NumericError where no smaller scale can help: at the minimum, after most_skips steps without an
  /// update, and where scaling is off.
  double finish_step(bool overflow);

  /// Of the next step, as far as finish_step() has seen.
  double scale() const { return state_.scale; }
  const LossScaleState& state() const { return state_; }
  /// Goes on from a checkpoint. The configuration may have changed since: a fixed scale stays, a dynamic one
  /// is raised to the minimum, and no more hysteresis is left than there is. Throws DataError for a state
  /// that no scaler can have.
  void restore(const LossScaleState& state);

 private:
  /// In device memory.
  struct There {
    LossScaleState state;
    float of_loss = 1;
  };
  bool is_dynamic() const { return config_.enabled && config_.fixed == 0; }
  void check_for_hope() const;
  void upload();

  LossScaleConfig config_;
  device::LossScaleRule rule_;
  LossScaleState state_;
  device::Device& device_;
  device::Buffer there_;  ///< where scaling is on
};

}  // namespace cartan::optim
