// Schedules as data: for each stage a list of actions. A schedule is generated, checked and executed; the
// executor is a loop over the list.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cartan/core/types.hpp"

namespace cartan::pipeline {

enum class ActionKind {
  forward,   ///< units of the stage in order
  backward,  ///< dgrad and wgrad of each unit in reverse
};
std::string_view name_of(ActionKind kind);

struct Action {
  ActionKind kind = ActionKind::forward;
  Index micro_batch = 0;
  /// The last backward of the step on this stage: its gradients are reduced as they become complete.
  bool reduces = false;
  friend bool operator==(const Action&, const Action&) = default;
};

/// Actions of every stage.
struct Schedule {
  std::string name;
  Index micro_batches = 0;
  std::vector<std::vector<Action>> stages;
};

/// One stage: forward and backward of each micro-batch in turn, so that one set of activations is alive.
Schedule single_stage(Index micro_batches);

/// Throws InternalError that names stage and action unless each stage runs every micro-batch forward and then
/// backward exactly once, in canonical order of the backward passes, and reduces exactly at the last one.
void validate(const Schedule& schedule);

/// Micro-batches whose activations are alive at the same time on a stage, at most.
Index in_flight(const Schedule& schedule, std::size_t stage);

/// Runs one stage's actions in order.
void execute(const Schedule& schedule, std::size_t stage, const std::function<void(const Action&)>& run);

}  // namespace cartan::pipeline
