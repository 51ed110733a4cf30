#include "device/cpu/decision.hpp"

#include <algorithm>
#include <cmath>

#include "cartan/core/exact_sum.hpp"

namespace cartan::device::cpu {

UpdateDecision decide_update(std::span<const std::int64_t> words, const UpdateRule& rule,
                             const float* loss_scale) {
  const ExactSum squares(words.first<ExactSum::kWordCount>());
  const double scale = loss_scale == nullptr ? rule.scale : rule.scale / static_cast<double>(*loss_scale);
  const double norm = scale * std::sqrt(squares.value());
  const double clipped = rule.clip > 0 ? std::min(1.0, rule.clip / (norm + 1e-6)) : 1.0;
  return {norm, static_cast<float>(scale * clipped), std::isfinite(norm) ? 1 : 0};
}

void update_loss_scale(bool overflow, const LossScaleRule& rule, LossScaleState& state) {
  if (overflow) {
    ++state.skipped;
    state.good_steps = 0;
    if (!rule.is_dynamic) return;
    if (state.hysteresis_left > 1)
      --state.hysteresis_left;
    else
      state.scale = std::max(state.scale / 2, rule.lowest);
    return;
  }
  state.skipped = 0;
  if (!rule.is_dynamic) return;
  // The step right after an overflow, and the very first one, do not count for the window.
  const bool grows = state.good_steps > 0 && state.good_steps % rule.window == 0;
  if (grows) state.scale = std::min(state.scale * 2, rule.highest);
  if (grows || rule.fills_hysteresis) state.hysteresis_left = rule.hysteresis;
  ++state.good_steps;
}

}  // namespace cartan::device::cpu
