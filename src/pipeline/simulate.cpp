#include "cartan/pipeline/simulate.hpp"

#include <algorithm>
#include <utility>

#include "pipeline/progress.hpp"

namespace cartan::pipeline {
namespace {

double cost_of(ActionKind kind, const Costs& costs) {
  switch (kind) {
    case ActionKind::forward:
      return costs.forward;
    case ActionKind::backward:
      return costs.input + costs.weight;
    case ActionKind::backward_input:
      return costs.input;
    case ActionKind::backward_weight:
      return costs.weight;
  }
  throw InternalError("an action of an unknown kind");
}

class Simulation {
 public:
  Simulation(const Schedule& schedule, const Costs& costs)
      : schedule_(schedule),
        costs_(costs),
        parts_(schedule.stages.size() * static_cast<std::size_t>(schedule.chunks)) {
    const std::size_t pairs = parts_ * static_cast<std::size_t>(schedule.micro_batches);
    forward_end_.assign(pairs, kNever);
    backward_end_.assign(pairs, kNever);
    timeline_.chunks = schedule.chunks;
    timeline_.stages.resize(schedule.stages.size());
  }

  Timeline run() {
    run_until_stuck(schedule_.stages.size(), [this](std::size_t stage) { return step(stage); });
    double busy = 0;
    for (std::size_t stage = 0; stage < schedule_.stages.size(); ++stage) {
      const auto& spans = timeline_.stages[stage];
      if (spans.size() != schedule_.stages[stage].size())
        throw InternalError("schedule {}: stage {} waits for ever at action {}", schedule_.name, stage,
                            spans.size());
      for (const Timeline::Span& span : spans) {
        busy += span.end - span.begin;
        timeline_.makespan = std::max(timeline_.makespan, span.end);
      }
    }
    if (timeline_.makespan > 0)
      timeline_.idle_share = 1 - busy / (static_cast<double>(schedule_.stages.size()) * timeline_.makespan);
    return std::move(timeline_);
  }

 private:
  static constexpr double kNever = -1;

  /// When the action's input is on its stage; kNever: not yet known.
  double ready(std::size_t stage, const Action& action, std::size_t pair) const {
    const Route route = route_of(schedule_, stage, action);
    if (!route.from) return 0;
    // Pairs are ordered by part.
    const auto step = static_cast<std::size_t>(schedule_.micro_batches);
    const double sent =
        action.kind == ActionKind::forward ? forward_end_[pair - step] : backward_end_[pair + step];
    return sent == kNever ? kNever : sent + costs_.transfer;
  }

  bool step(std::size_t stage) {
    auto& spans = timeline_.stages[stage];
    if (spans.size() == schedule_.stages[stage].size()) return false;
    const Action& action = schedule_.stages[stage][spans.size()];
    const auto part = static_cast<std::size_t>(part_of(schedule_, stage, action.chunk));
    const std::size_t pair = part * static_cast<std::size_t>(schedule_.micro_batches) +
                             static_cast<std::size_t>(action.micro_batch);
    const double input = ready(stage, action, pair);
    if (input == kNever) return false;
    const double begin = std::max(input, spans.empty() ? 0 : spans.back().end);
    const double end = begin + cost_of(action.kind, costs_) / schedule_.chunks;
    if (action.kind == ActionKind::forward) forward_end_[pair] = end;
    if (action.kind == ActionKind::backward || action.kind == ActionKind::backward_input)
      backward_end_[pair] = end;
    spans.push_back({begin, end, action});
    return true;
  }

  const Schedule& schedule_;
  Costs costs_;
  std::size_t parts_;
  std::vector<double> forward_end_, backward_end_;  ///< [part][micro-batch]
  Timeline timeline_;
};

}  // namespace

Timeline simulate(const Schedule& schedule, const Costs& costs) { return Simulation(schedule, costs).run(); }

}  // namespace cartan::pipeline
