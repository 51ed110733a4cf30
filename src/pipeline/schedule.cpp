// The generators: each writes the list of one stage without knowing the others; validate() proves that the
// lists fit together.
#include "cartan/pipeline/schedule.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "cartan/core/narrow.hpp"

namespace cartan::pipeline {
namespace {

struct Unit {
  Index micro_batch = 0;
  int chunk = 0;
};

/// Interleaved stages run all chunks of a group of micro-batches before the next group. A group of p brings
/// the first micro-batch back to the first stage just when its next chunk is due. A larger group brings it
/// back too early, which a stage can wait for once; where groups follow each other, sends would wait for each
/// other around the ring.
Index group_size(Index stages, Index micro_batches) {
  return micro_batches < 2 * stages ? micro_batches : stages;
}

/// The order of a stage's forwards, or with `reversed` chunks that of its backwards.
std::vector<Unit> interleaved_order(Index micro_batches, Index group, int chunks, bool reversed) {
  std::vector<Unit> order;
  for (Index first = 0; first < micro_batches; first += group) {
    for (int i = 0; i < chunks; ++i) {
      for (Index m = first; m < first + group; ++m) order.push_back({m, reversed ? chunks - 1 - i : i});
    }
  }
  return order;
}

/// `warm_up` forwards, then a forward and a backward in turn, then the backwards that are left.
std::vector<Action> alternate(const std::vector<Unit>& forwards, const std::vector<Unit>& backwards,
                              Index warm_up) {
  std::vector<Action> actions;
  actions.reserve(forwards.size() + backwards.size());
  const std::size_t ahead = std::min(forwards.size(), narrow<std::size_t>(warm_up));
  const auto forward = [&](std::size_t i) {
    actions.push_back({ActionKind::forward, forwards[i].micro_batch, forwards[i].chunk});
  };
  for (std::size_t i = 0; i < ahead; ++i) forward(i);
  for (std::size_t i = 0; i < backwards.size(); ++i) {
    if (ahead + i < forwards.size()) forward(ahead + i);
    actions.push_back({ActionKind::backward, backwards[i].micro_batch, backwards[i].chunk});
  }
  return actions;
}

/// Stage s postpones its weight gradients by s micro-batches. So every stage keeps the p micro-batches that
/// the first one needs anyway, gradients travel to the first stage without waiting for them, and what is
/// postponed fills the end of the step, when the later stages have nothing else to do.
std::vector<Action> zero_bubble_stage(Index stage, Index stages, Index micro_batches) {
  std::vector<Action> actions;
  const Index ahead = std::min(micro_batches, stages - 1 - stage);
  const Index postponed = std::min(micro_batches, stage);
  for (Index m = 0; m < ahead; ++m) actions.push_back({ActionKind::forward, m});
  for (Index m = 0; m < micro_batches; ++m) {
    if (ahead + m < micro_batches) actions.push_back({ActionKind::forward, ahead + m});
    actions.push_back({ActionKind::backward_input, m});
    if (m >= postponed) actions.push_back({ActionKind::backward_weight, m - postponed});
  }
  for (Index m = micro_batches - postponed; m < micro_batches; ++m)
    actions.push_back({ActionKind::backward_weight, m});
  return actions;
}

std::vector<std::vector<Action>> make_stages(std::string_view kind, Index stages, Index micro_batches,
                                             int chunks) {
  std::vector<std::vector<Action>> lists;
  if (kind == "zero-bubble") {
    for (Index s = 0; s < stages; ++s) lists.push_back(zero_bubble_stage(s, stages, micro_batches));
    return lists;
  }
  const Index group = kind == "interleaved" ? group_size(stages, micro_batches) : micro_batches;
  const std::vector<Unit> forwards = interleaved_order(micro_batches, group, chunks, false);
  const std::vector<Unit> backwards = interleaved_order(micro_batches, group, chunks, true);
  for (Index s = 0; s < stages; ++s) {
    const Index behind = stages - 1 - s;
    const Index warm_up = kind == "gpipe"  ? micro_batches
                          : kind == "1f1b" ? behind
                                           : 2 * behind + (chunks - 1) * group;
    lists.push_back(alternate(forwards, backwards, warm_up));
  }
  return lists;
}

}  // namespace

std::string_view name_of(ActionKind kind) {
  static constexpr std::array<std::string_view, 4> names{"forward", "backward", "backward_input",
                                                         "backward_weight"};
  return names.at(static_cast<std::size_t>(kind));
}

const std::vector<std::string>& schedule_kinds() {
  static const std::vector<std::string> kinds{"gpipe", "1f1b", "interleaved", "zero-bubble"};
  return kinds;
}

void check(std::string_view kind, int stages, Index micro_batches, int chunks, Problems& problems) {
  CARTAN_ASSERT(stages >= 1 && micro_batches >= 1);
  const std::vector<std::string>& kinds = schedule_kinds();
  if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) {
    problems.add("pipeline.schedule = {}: use one of {}", kind, fmt::join(kinds, ", "));
    return;
  }
  if (chunks < 1) problems.add("pipeline.chunks = {}: must be at least 1", chunks);
  if (chunks > 1 && kind != "interleaved") {
    problems.add(
        "pipeline.chunks = {} does not fit pipeline.schedule = {}, which has one chunk a stage: use "
        "pipeline.chunks 1, or pipeline.schedule interleaved",
        chunks, kind);
  } else if (chunks > 1 && stages == 1) {
    problems.add("pipeline.chunks = {} needs at least two stages, but mesh.pp = 1: use pipeline.chunks 1",
                 chunks);
  }
  if (kind != "interleaved") return;
  const Index below = micro_batches / stages * stages;
  if (micro_batches < stages || (micro_batches > 2 * stages && micro_batches != below))
    problems.add(
        "pipeline.schedule = interleaved on mesh.pp = {} stages cannot run {} micro-batches a step "
        "(batch.global / "
        "(batch.micro * mesh.dp)): use {}{} of them, or another schedule",
        stages, micro_batches, below > 0 ? fmt::format("{} or ", below) : "", below + stages);
}

Schedule make_schedule(std::string_view kind, int stages, Index micro_batches, int chunks) {
  Problems problems;
  check(kind, stages, micro_batches, chunks, problems);
  problems.throw_if_any("the pipeline");
  Schedule schedule{std::string(kind), micro_batches, chunks,
                    make_stages(kind, stages, micro_batches, chunks)};
  for (std::vector<Action>& actions : schedule.stages) {
    for (Action& action : actions)
      action.reduces = action.micro_batch + 1 == micro_batches &&
                       (action.kind == ActionKind::backward || action.kind == ActionKind::backward_weight);
  }
  return schedule;
}

Schedule single_stage(Index micro_batches) { return make_schedule("1f1b", 1, micro_batches, 1); }

Index in_flight(const Schedule& schedule, std::size_t stage) {
  Index alive = 0, most = 0;
  for (const Action& action : schedule.stages.at(stage)) {
    if (action.kind == ActionKind::forward) most = std::max(most, ++alive);
    if (action.kind == ActionKind::backward || action.kind == ActionKind::backward_weight) --alive;
  }
  return most;
}

int part_of(const Schedule& schedule, std::size_t stage, int chunk) {
  return chunk * static_cast<int>(schedule.stages.size()) + static_cast<int>(stage);
}

Route route_of(const Schedule& schedule, std::size_t stage, const Action& action) {
  const std::size_t stages = schedule.stages.size();
  if (action.kind == ActionKind::backward_weight) return {};
  Route forward;
  if (stage > 0 || action.chunk > 0) forward.from = stage > 0 ? stage - 1 : stages - 1;
  if (stage + 1 < stages || action.chunk + 1 < schedule.chunks)
    forward.to = stage + 1 < stages ? stage + 1 : 0;
  return action.kind == ActionKind::forward ? forward : Route{forward.to, forward.from};
}

void execute(const Schedule& schedule, std::size_t stage, const std::function<void(const Action&)>& run) {
  for (const Action& action : schedule.stages.at(stage)) run(action);
}

}  // namespace cartan::pipeline
