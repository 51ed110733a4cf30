// Settings of the optimizer and of the learning rate's schedule.
#pragma once

#include <string>
#include <vector>

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
  /// constant | linear | cosine | wsd | warmup-lr | warmup-decay-lr | warmup-cosine-lr
  std::string kind = "cosine";
  Index length = 0;  ///< updates until the course has ended; 0: those of the run
  Index warmup = 0;  ///< updates of warm-up
  /// Rate of update 0, where the warm-up starts; -1: one step above zero. Not of warmup-lr, warmup-decay-lr.
  double warmup_begin = -1;
  /// Where linear, cosine, wsd and warmup-cosine-lr end; where warmup-lr and warmup-decay-lr start.
  double min_lr = 0.0;
  Index decay_steps = 0;               ///< wsd: updates of the final decay; 0: a tenth of the run
  std::string warmup_type = "linear";  ///< DeepSpeed's kinds only: linear | log
};

void check(const OptimConfig& config, Problems& problems);
void check(const ScheduleConfig& config, Index total_steps, Problems& problems);

/// The names of all kinds, in the order in which they are shown.
std::vector<std::string> schedule_kinds();

}  // namespace cartan::optim
