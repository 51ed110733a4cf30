#include "cartan/optim/loss_scaler.hpp"

#include <algorithm>
#include <cmath>

namespace cartan::optim {
namespace {

/// The scale and its inverse are floats on the device. Only gradients that are all zero get here.
constexpr double kLargest = 0x1p100;
constexpr int kLargestPower = 100;

}  // namespace

void check(const LossScaleConfig& config, Problems& problems) {
  if (!(config.fixed >= 0 && config.fixed <= kLargest))
    problems.add("precision.loss-scale = {}: use 0 (dynamic) or a positive number, 1024 for instance",
                 config.fixed);
  if (config.initial_power < 0 || config.initial_power > kLargestPower)
    problems.add("precision.loss-scale-power = {}: must be from 0 to {}", config.initial_power,
                 kLargestPower);
  if (config.window < 1)
    problems.add("precision.loss-scale-window = {}: must be at least 1 step", config.window);
  if (config.hysteresis < 1)
    problems.add("precision.loss-scale-hysteresis = {}: must be at least 1", config.hysteresis);
  if (!(config.minimum > 0 && config.minimum <= kLargest))
    problems.add("precision.loss-scale-min = {}: must be a positive number", config.minimum);
  else if (config.fixed == 0 && std::ldexp(1.0, config.initial_power) < config.minimum)
    problems.add(
        "precision.loss-scale-power = {} starts at {}, below precision.loss-scale-min = {}: use a larger "
        "power "
        "or a smaller minimum",
        config.initial_power, std::ldexp(1.0, config.initial_power), config.minimum);
}

LossScaler::LossScaler(const LossScaleConfig& config) : config_(config) {
  Problems problems;
  check(config, problems);
  problems.throw_if_any("the loss scale");
  if (config.enabled) state_.scale = config.fixed > 0 ? config.fixed : std::ldexp(1.0, config.initial_power);
  state_.hysteresis_left = config.hysteresis;
}

void LossScaler::check_for_hope() const {
  if (!config_.enabled)
    throw NumericError(
        "some gradient is infinite or NaN: resume from an earlier checkpoint with a lower optim.lr");
  if (is_dynamic() && config_.stops_at_minimum && state_.hysteresis_left == 1 &&
      state_.scale == config_.minimum)
    throw NumericError(
        "the gradients overflow fp16 at the smallest loss scale, precision.loss-scale-min = {}: resume from "
        "an earlier checkpoint with a lower optim.lr, or use "
        "precision.compute = bf16",
        config_.minimum);
  if (state_.skipped >= config_.most_skips)
    throw NumericError(
        "the gradients overflow fp16 at loss scale {} and {} steps in a row had no update: use a smaller "
        "precision.loss-scale (0: dynamic), a lower optim.lr, or precision.compute = bf16",
        state_.scale, state_.skipped);
}

bool LossScaler::update(bool overflow) {
  if (overflow) {
    check_for_hope();
    ++state_.skipped;
    state_.good_steps = 0;
    if (!is_dynamic()) return false;
    if (state_.hysteresis_left > 1) {
      --state_.hysteresis_left;
    } else {
      state_.scale = std::max(state_.scale / 2, config_.minimum);
    }
    return false;
  }
  state_.skipped = 0;
  if (!is_dynamic()) return true;
  // The step right after an overflow, and the very first one, do not count for the window.
  const bool grows = state_.good_steps > 0 && state_.good_steps % config_.window == 0;
  if (grows) state_.scale = std::min(state_.scale * 2, kLargest);
  if (grows || config_.consecutive_hysteresis) state_.hysteresis_left = config_.hysteresis;
  ++state_.good_steps;
  return true;
}

void LossScaler::restore(const LossScaleState& state) {
  if (!(state.scale > 0 && std::isfinite(state.scale)) || state.good_steps < 0 || state.hysteresis_left < 1 ||
      state.skipped < 0)
    throw DataError(
        "a stored loss scale of {} with {} good steps, hysteresis {} and {} skipped steps cannot be: the "
        "checkpoint is damaged, resume from another one",
        state.scale, state.good_steps, state.hysteresis_left, state.skipped);
  const double scale = is_dynamic() ? std::clamp(state.scale, config_.minimum, kLargest) : state_.scale;
  state_ = {scale, state.good_steps, std::min(state.hysteresis_left, config_.hysteresis), state.skipped};
}

}  // namespace cartan::optim
