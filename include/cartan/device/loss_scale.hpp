// How a loss scale moves (Ops::update_loss_scale), written once for every device.
#pragma once

#include <cstdint>

#include "cartan/core/types.hpp"
#include "cartan/device/everywhere.hpp"

namespace cartan::device {

/// In device memory: a loss scale and what decides on the next one (optim/loss_scaler.hpp).
struct LossScaleState {
  double scale = 1;
  Index good_steps = 0;  ///< since the last overflow, or since the start
  std::int32_t hysteresis_left = 1;
  Index skipped = 0;  ///< steps without an update in a row
  bool operator==(const LossScaleState&) const = default;
};

/// How a loss scale moves.
struct LossScaleRule {
  bool is_dynamic = true;  ///< false: only `skipped` is counted
  Index window = 1000;     ///< good steps before the scale doubles
  std::int32_t hysteresis = 2;
  bool fills_hysteresis = false;  ///< with every good step, and not only when the scale doubles
  double lowest = 1, highest = 0x1p100;
  double share = 1;  ///< of the scale, that the loss is multiplied by
};

/// Ends a step whose gradients overflowed, or did not. Window and hysteresis are DeepSpeed's.
CARTAN_EVERYWHERE inline void move_loss_scale(LossScaleState& state, const LossScaleRule& rule,
                                              bool overflow) {
  if (overflow) {
    ++state.skipped;
    state.good_steps = 0;
    if (!rule.is_dynamic) return;
    const double half = state.scale / 2;
    if (state.hysteresis_left > 1)
      --state.hysteresis_left;
    else
      state.scale = half < rule.lowest ? rule.lowest : half;
    return;
  }
  state.skipped = 0;
  if (!rule.is_dynamic) return;
  // The step right after an overflow, and the very first one, do not count for the window.
  const bool grows = state.good_steps > 0 && state.good_steps % rule.window == 0;
  const double twice = state.scale * 2;
  if (grows) state.scale = twice > rule.highest ? rule.highest : twice;
  if (grows || rule.fills_hysteresis) state.hysteresis_left = rule.hysteresis;
  ++state.good_steps;
}

}  // namespace cartan::device
