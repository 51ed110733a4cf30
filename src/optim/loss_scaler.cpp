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

LossScaler::LossScaler(const LossScaleConfig& config, double share, device::Device& device)
    : config_(config), device_(device) {
  Problems problems;
  check(config, problems);
  problems.throw_if_any("the loss scale");
  rule_ = {.is_dynamic = is_dynamic(),
           .window = config.window,
           .hysteresis = config.hysteresis,
           .fills_hysteresis = config.consecutive_hysteresis,
           .lowest = config.minimum,
           .highest = kLargest,
           .share = share};
  state_.hysteresis_left = config.hysteresis;
  if (!config.enabled) return;
  state_.scale = config.fixed > 0 ? config.fixed : std::ldexp(1.0, config.initial_power);
  there_ = device.allocate(sizeof(There), device::MemoryKind::workspace, "loss scale");
  upload();
}

void LossScaler::upload() {
  const There there{state_, static_cast<float>(state_.scale * rule_.share)};
  device_.copy_in(there_.data(), &there, sizeof there, device_.compute_stream());
}

const float* LossScaler::of_loss() const { return config_.enabled ? &there_.as<There>()->of_loss : nullptr; }

void LossScaler::update(const device::UpdateDecision* decision) {
  if (!config_.enabled) return;
  There* const there = there_.as<There>();
  device_.ops().update_loss_scale(decision, rule_, &there->state, &there->of_loss, device_.compute_stream());
}

double LossScaler::finish_step(bool overflow) {
  if (overflow) check_for_hope();
  const double scale = state_.scale;
  if (!config_.enabled) return scale;
  device_.copy_out(&state_, &there_.as<There>()->state, sizeof state_, device_.compute_stream());
  return scale;
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

void LossScaler::restore(const LossScaleState& state) {
  if (!(state.scale > 0 && std::isfinite(state.scale)) || state.good_steps < 0 || state.hysteresis_left < 1 ||
      state.skipped < 0)
    throw DataError(
        "a stored loss scale of {} with {} good steps, hysteresis {} and {} skipped steps cannot be: the "
        "checkpoint is damaged, resume from another one",
        state.scale, state.good_steps, state.hysteresis_left, state.skipped);
  const double scale = is_dynamic() ? std::clamp(state.scale, config_.minimum, kLargest) : state_.scale;
  state_ = {scale, state.good_steps, std::min(state.hysteresis_left, config_.hysteresis), state.skipped};
  if (config_.enabled) upload();
}

}  // namespace cartan::optim
