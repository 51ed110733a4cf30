// What can be wrong in the sections optim and schedule.
#include "cartan/optim/config.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

namespace cartan::optim {
namespace {

constexpr std::array<std::string_view, 5> kKinds{"constant", "linear", "cosine", "wsd", "warmup-lr"};

void check_fraction(std::string_view key, double value, Problems& problems) {
  if (!(value >= 0 && value < 1)) problems.add("{} = {}: must be at least 0 and below 1", key, value);
}

void check_not_negative(std::string_view key, double value, Problems& problems) {
  if (!(value >= 0 && std::isfinite(value)))
    problems.add("{} = {}: must be a finite number, at least 0", key, value);
}

}  // namespace

void check(const OptimConfig& config, Problems& problems) {
  check_not_negative("optim.lr", config.lr, problems);
  check_fraction("optim.beta1", config.beta1, problems);
  check_fraction("optim.beta2", config.beta2, problems);
  if (!(config.eps > 0 && std::isfinite(config.eps)))
    problems.add("optim.eps = {}: must be a finite number above 0", config.eps);
  check_not_negative("optim.weight-decay", config.weight_decay, problems);
  check_not_negative("optim.clip", config.clip, problems);
}

void check(const ScheduleConfig& config, Index total_steps, Problems& problems) {
  if (std::find(kKinds.begin(), kKinds.end(), config.kind) == kKinds.end())
    problems.add("schedule.kind = {}: must be constant, linear, cosine, wsd or warmup-lr", config.kind);
  if (config.warmup_type != "linear" && config.warmup_type != "log")
    problems.add("schedule.warmup-type = {}: must be linear or log", config.warmup_type);
  check_not_negative("schedule.min-lr", config.min_lr, problems);
  if (config.warmup < 0) problems.add("schedule.warmup = {}: must be at least 0 updates", config.warmup);
  if (config.decay_steps < 0)
    problems.add("schedule.decay-steps = {}: must be at least 0 updates", config.decay_steps);

  const bool decays = config.kind == "linear" || config.kind == "cosine" || config.kind == "wsd";
  if (!decays || total_steps <= 0) return;
  if (config.warmup > total_steps)
    problems.add(
        "schedule.warmup = {} is longer than run.steps = {}, so the rate never reaches its peak: use at most "
        "{}",
        config.warmup, total_steps, total_steps);
  else if (config.kind == "wsd" && config.decay_steps > total_steps - config.warmup)
    problems.add(
        "schedule.decay-steps = {} does not fit: run.steps = {} less schedule.warmup = {} leaves {} updates",
        config.decay_steps, total_steps, config.warmup, total_steps - config.warmup);
}

}  // namespace cartan::optim
