#include "cartan/optim/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace cartan::optim {
namespace {

double fraction(Index part, Index whole) { return static_cast<double>(part) / static_cast<double>(whole); }

double deepspeed_warmup(const ScheduleConfig& schedule, double peak, Index step) {
  const Index warmup = std::max<Index>(2, schedule.warmup);
  if (step <= 1) return schedule.min_lr;
  if (step > warmup) return peak;
  const double done = schedule.warmup_type == "log"
                          ? std::log(static_cast<double>(step)) / std::log(static_cast<double>(warmup))
                          : fraction(step - 1, warmup);
  return schedule.min_lr + (peak - schedule.min_lr) * done;
}

Index wsd_decay_steps(const ScheduleConfig& schedule, Index total_steps) {
  return schedule.decay_steps > 0 ? schedule.decay_steps : std::max<Index>(1, total_steps / 10);
}

}  // namespace

double learning_rate(const ScheduleConfig& schedule, double peak, Index step, Index total_steps) {
  if (schedule.kind == "warmup-lr") return deepspeed_warmup(schedule, peak, step);
  const Index warmup = schedule.warmup;
  if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  if (schedule.kind == "constant") return peak;
  if (step >= total_steps) return schedule.min_lr;

  const double span = peak - schedule.min_lr;
  if (schedule.kind == "wsd") {
    const Index decay = wsd_decay_steps(schedule, total_steps);
    const Index start = total_steps - decay;
    return step <= start ? peak : schedule.min_lr + span * (1 - fraction(step - start, decay));
  }
  const double x = fraction(step - warmup, total_steps - warmup);
  if (schedule.kind == "linear") return schedule.min_lr + span * (1 - x);
  if (schedule.kind == "cosine") return schedule.min_lr + span * 0.5 * (1 + std::cos(std::numbers::pi * x));
  throw ConfigError("schedule.kind = {} is not a schedule: use constant, linear, cosine, wsd or warmup-lr",
                    schedule.kind);
}

}  // namespace cartan::optim
