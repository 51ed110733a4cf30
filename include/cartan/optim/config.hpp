// Settings of the optimizer and of the learning rate's schedule.
#pragma once

#include <string>

#include "cartan/core/error.hpp"
#include "cartan/core/types.hpp"

namespace cartan::optim {

/// AdamW with global-norm clipping. Decay applies to matrices only (embedding and head included).
struct OptimConfig {
  double lr = 3e-4;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double clip = 1.0;  ///< largest gradient norm; 0: no clipping
  /// auto: where nothing is clipped and one rank computes the batch at once, each unit is updated as soon as
  /// its gradients are complete, and gradients of the whole model never exist | never
  std::string fused = "auto";
};

/// The learning rate as a function of the update number.
struct ScheduleConfig {
  std::string kind = "cosine";         ///< constant | linear | cosine | wsd | warmup-lr
  Index warmup = 0;                    ///< updates of warm-up
  double min_lr = 0.0;                 ///< where linear, cosine and wsd end; where warmup-lr starts
  Index decay_steps = 0;               ///< wsd: updates of the final decay; 0: a tenth of the run
  std::string warmup_type = "linear";  ///< warmup-lr only: linear | log
};

void check(const OptimConfig& config, Problems& problems);
void check(const ScheduleConfig& config, Index total_steps, Problems& problems);

}  // namespace cartan::optim
