#include "cartan/pipeline/schedule.hpp"

#include <algorithm>

#include "cartan/core/error.hpp"

namespace cartan::pipeline {

std::string_view name_of(ActionKind kind) { return kind == ActionKind::forward ? "forward" : "backward"; }

Schedule single_stage(Index micro_batches) {
  Schedule schedule{"single", micro_batches, {{}}};
  for (Index m = 0; m < micro_batches; ++m) {
    schedule.stages[0].push_back({ActionKind::forward, m, false});
    schedule.stages[0].push_back({ActionKind::backward, m, m + 1 == micro_batches});
  }
  return schedule;
}

void validate(const Schedule& schedule) {
  for (std::size_t stage = 0; stage < schedule.stages.size(); ++stage) {
    Index forwards = 0, backwards = 0;
    for (const Action& action : schedule.stages[stage]) {
      const bool is_forward = action.kind == ActionKind::forward;
      const Index expected = is_forward ? forwards : backwards;
      const bool in_order = action.micro_batch == expected && (is_forward || action.micro_batch < forwards);
      const bool reduces = !is_forward && action.micro_batch + 1 == schedule.micro_batches;
      if (!in_order || action.reduces != reduces || action.micro_batch >= schedule.micro_batches)
        throw InternalError(
            "schedule {}: stage {}: {} of micro-batch {} is out of order (micro-batch {} is due)",
            schedule.name, stage, name_of(action.kind), action.micro_batch, expected);
      ++(is_forward ? forwards : backwards);
    }
    if (forwards != schedule.micro_batches || backwards != schedule.micro_batches)
      throw InternalError("schedule {}: stage {} runs {} of {} micro-batches", schedule.name, stage,
                          backwards, schedule.micro_batches);
  }
}

Index in_flight(const Schedule& schedule, std::size_t stage) {
  Index alive = 0, most = 0;
  for (const Action& action : schedule.stages.at(stage)) {
    alive += action.kind == ActionKind::forward ? 1 : -1;
    most = std::max(most, alive);
  }
  return most;
}

void execute(const Schedule& schedule, std::size_t stage, const std::function<void(const Action&)>& run) {
  for (const Action& action : schedule.stages.at(stage)) run(action);
}

}  // namespace cartan::pipeline
