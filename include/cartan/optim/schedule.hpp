// Learning-rate schedules as plain functions of the update number: nothing is stored, so a resumed run needs
// no state of a schedule.
#pragma once

#include "cartan/optim/config.hpp"

namespace cartan::optim {

/// The rate of update s = `step` (0-based) in a run of N = `total_steps` updates; W = schedule.warmup,
/// m = schedule.min_lr, p = `peak`, D = schedule.decay_steps (0: N / 10, at least 1).
///
/// constant, linear, cosine and wsd warm up by p (s + 1) / W while s < W. Then:
///   constant   p
///   linear     m + (p - m) (1 - x),              x = (s - W) / (N - W)
///   cosine     m + (p - m) (1 + cos(pi x)) / 2,  x as above
///   wsd        p while s <= N - D, then m + (p - m) (1 - x), x = (s - (N - D)) / D
/// x is 1 at s = N, so the last update (s = N - 1) is still a little above m; m from N on. After the warm-up
/// these are Megatron-LM's formulas with its num_steps = s (wsd: lr_wsd_decay_style linear).
///
/// warmup-lr is DeepSpeed's WarmupLR, from m up to p, W < 2 counting as 2. DeepSpeed steps its schedule after
/// an update, so updates 0 and 1 both use m; then
///   linear     m + (p - m) (s - 1) / W
///   log        m + (p - m) ln(s) / ln(W)
/// while s <= W, and p from W + 1 on. It does not depend on N.
double learning_rate(const ScheduleConfig& schedule, double peak, Index step, Index total_steps);

}  // namespace cartan::optim
