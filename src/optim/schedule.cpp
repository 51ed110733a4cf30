#include "cartan/optim/schedule.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace cartan::optim {
namespace {

double fraction(Index part, Index whole) { return static_cast<double>(part) / static_cast<double>(whole); }

/// How far the warm-up of DeepSpeed's schedules has come at update s, 1 <= s <= W.
double deepspeed_progress(const ScheduleConfig& schedule, Index warmup, Index step) {
  return schedule.warmup_type == "log"
             ? std::log(static_cast<double>(step)) / std::log(static_cast<double>(warmup))
             : fraction(step - 1, warmup);
}

/// From 1 to 0.
double half_cosine(double x) { return 0.5 * (1 + std::cos(std::numbers::pi * x)); }

double deepspeed_rate(const ScheduleConfig& schedule, double peak, Index step, Index length) {
  const Index warmup = std::max<Index>(2, schedule.warmup);
  const bool is_cosine = schedule.kind == "warmup-cosine-lr";
  const double begin = is_cosine ? std::max(0.0, schedule.warmup_begin) : schedule.min_lr;
  if (step == 0) return is_cosine ? 0 : begin;
  if (step <= warmup) return begin + (peak - begin) * deepspeed_progress(schedule, warmup, step);
  if (schedule.kind == "warmup-lr") return peak;
  const double span = peak - schedule.min_lr;
  if (step >= length + (is_cosine ? 0 : 1)) return schedule.min_lr;
  if (is_cosine) return schedule.min_lr + span * half_cosine(fraction(step - warmup, length - warmup));
  return schedule.min_lr + span * fraction(length - (step - 1), length - warmup);
}

Index wsd_decay_steps(const ScheduleConfig& schedule, Index total_steps) {
  return schedule.decay_steps > 0 ? schedule.decay_steps : std::max<Index>(1, total_steps / 10);
}

}  // namespace

double learning_rate(const ScheduleConfig& schedule, double peak, Index step, Index total_steps) {
  const Index length = schedule.length > 0 ? schedule.length : total_steps;
  if (schedule.kind.starts_with("warmup-")) return deepspeed_rate(schedule, peak, step, length);
  const Index warmup = schedule.warmup;
  if (step < warmup) {
    const double begin = schedule.warmup_begin;
    if (begin >= 0) return begin + (peak - begin) * fraction(step, warmup);
    return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  }
  if (schedule.kind == "constant") return peak;
  if (step >= length) return schedule.min_lr;

  const double span = peak - schedule.min_lr;
  if (schedule.kind == "wsd") {
    const Index decay = wsd_decay_steps(schedule, length);
    const Index start = length - decay;
    return step <= start ? peak : schedule.min_lr + span * (1 - fraction(step - start, decay));
  }
  const double x = fraction(step - warmup, length - warmup);
  if (schedule.kind == "linear") return schedule.min_lr + span * (1 - x);
  if (schedule.kind == "cosine") return schedule.min_lr + span * half_cosine(x);
  throw ConfigError("schedule.kind = {} is not a schedule: use one of {}", schedule.kind,
                    fmt::join(schedule_kinds(), ", "));
}

}  // namespace cartan::optim
