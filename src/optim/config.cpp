// What can be wrong in the sections optim and schedule.
#include "cartan/optim/config.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

namespace cartan::optim {
namespace {

constexpr std::array<std::string_view, 7> kKinds{"constant",  "linear",          "cosine",          "wsd",
                                                 "warmup-lr", "warmup-decay-lr", "warmup-cosine-lr"};

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
    problems.add("schedule.kind = {}: must be one of {}", config.kind, fmt::join(kKinds, ", "));
  if (config.warmup_type != "linear" && config.warmup_type != "log")
    problems.add("schedule.warmup-type = {}: must be linear or log", config.warmup_type);
  check_not_negative("schedule.min-lr", config.min_lr, problems);
  if (config.warmup_begin != -1) check_not_negative("schedule.warmup-begin", config.warmup_begin, problems);
  if (config.length < 0) problems.add("schedule.length = {}: must be at least 0 updates", config.length);
  if (config.warmup < 0) problems.add("schedule.warmup = {}: must be at least 0 updates", config.warmup);
  if (config.decay_steps < 0)
    problems.add("schedule.decay-steps = {}: must be at least 0 updates", config.decay_steps);

  const bool decays = config.kind != "constant" && config.kind != "warmup-lr";
  if (!decays || total_steps <= 0 || config.length < 0) return;
  const char* key = config.length > 0 ? "schedule.length" : "run.steps";
  const Index length = config.length > 0 ? config.length : total_steps;
  if (config.warmup > length)
    problems.add(
        "schedule.warmup = {} is longer than {} = {}, so the rate never reaches its peak: use at most {}",
        config.warmup, key, length, length);
  else if (config.kind == "wsd" && config.decay_steps > length - config.warmup)
    problems.add(
        "schedule.decay-steps = {} does not fit: {} = {} less schedule.warmup = {} leaves {} updates",
        config.decay_steps, key, length, config.warmup, length - config.warmup);
}

std::vector<std::string> schedule_kinds() { return {kKinds.begin(), kKinds.end()}; }

}  // namespace cartan::optim
