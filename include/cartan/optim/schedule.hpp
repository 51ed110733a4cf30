// Learning-rate schedules as plain functions of the update number: nothing is stored, so a resumed run needs
// no state of a schedule.
#pragma once

#include "cartan/optim/config.hpp"

namespace cartan::optim {

/// The rate of update s = `step` (0-based) in a run of `total_steps` updates; N = schedule.length (0:
/// `total_steps`), W = schedule.warmup, m = schedule.min_lr, p = `peak`, D = schedule.decay_steps (0: N / 10,
/// at least 1).
///
/// constant, linear, cosine and wsd warm up by p (s + 1) / W while s < W, or, where b = schedule.warmup_begin
/// is not negative, by b + (p - b) s / W (Megatron-LM, and Hugging Face with b = 0). Then:
///   constant   p
///   linear     m + (p - m) (1 - x),              x = (s - W) / (N - W)
///   cosine     m + (p - m) (1 + cos(pi x)) / 2,  x as above
///   wsd        p while s <= N - D, then m + (p - m) (1 - x), x = (s - (N - D)) / D
/// x is 1 at s = N, so the last update (s = N - 1) is still a little above m; m from N on. After the warm-up
/// these are Megatron-LM's formulas with its num_steps = s (wsd: lr_wsd_decay_style linear).
///
/// warmup-lr is DeepSpeed's WarmupLR, from m up to p, W < 2 counting as 2. DeepSpeed steps its schedule after
/// an update, so updates 0 and 1 both use m; then m + (p - m) g while s <= W, with
///   linear     g = (s - 1) / W
///   log        g = ln(s) / ln(W)
/// and p from W + 1 on, which does not depend on N. warmup-decay-lr (WarmupDecayLR) goes on from there with
/// g = (N - (s - 1)) / (N - W), down to m and no further. warmup-cosine-lr (WarmupCosineLR) uses 0 for update
/// 0, b + (p - b) g up to W (b < 0 counts as 0), and then a cosine from p to m:
/// m + (p - m) (1 + cos(pi (s - W) / (N - W))) / 2, m from N on.
double learning_rate(const ScheduleConfig& schedule, double peak, Index step, Index total_steps);

}  // namespace cartan::optim
