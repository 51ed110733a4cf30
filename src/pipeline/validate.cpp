// Is a schedule right? First each stage alone, then the order on the channels, then whether the stages
// together come to an end.
#include <fmt/format.h>

#include <array>

#include "cartan/pipeline/schedule.hpp"
#include "pipeline/progress.hpp"

namespace cartan::pipeline {
namespace {

std::string describe(const Action& action) {
  return fmt::format("{} of micro-batch {}, chunk {}", name_of(action.kind), action.micro_batch,
                     action.chunk);
}

/// "stage 2, action 5 (forward of micro-batch 3, chunk 0)".
std::string describe(const Schedule& schedule, std::size_t stage, std::size_t position) {
  const std::vector<Action>& actions = schedule.stages[stage];
  if (position >= actions.size()) return fmt::format("stage {}, which is done", stage);
  return fmt::format("stage {}, action {} ({})", stage, position, describe(actions[position]));
}

template <class... Args>
[[noreturn]] void refuse(const Schedule& schedule, std::size_t stage, std::size_t position,
                         fmt::format_string<Args...> text, Args&&... args) {
  throw InternalError("schedule {}: {} {}", schedule.name, describe(schedule, stage, position),
                      fmt::format(text, std::forward<Args>(args)...));
}

/// Whether dgrad and wgrad are apart: the first backward of the schedule decides for all.
bool is_split(const Schedule& schedule) {
  for (const std::vector<Action>& actions : schedule.stages) {
    for (const Action& action : actions) {
      if (action.kind != ActionKind::forward) return action.kind != ActionKind::backward;
    }
  }
  return false;
}

/// Each action once, in order, after what it needs of the same stage; at most `memory_bound` pairs alive.
void check_stage(const Schedule& schedule, std::size_t stage, bool split, Index memory_bound) {
  struct Done {
    Index forward = 0, input = 0, weight = 0;
  };
  std::vector<Done> chunks(static_cast<std::size_t>(schedule.chunks));
  const std::vector<Action>& actions = schedule.stages[stage];
  const ActionKind last_kind = split ? ActionKind::backward_weight : ActionKind::backward;
  Index alive = 0;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    if (action.chunk < 0 || action.chunk >= schedule.chunks)
      refuse(schedule, stage, i, "has a chunk that is not one of {}", schedule.chunks);
    if (action.kind != ActionKind::forward && (action.kind != ActionKind::backward) != split)
      refuse(schedule, stage, i, "mixes backward with backward_input and backward_weight");
    Done& done = chunks[static_cast<std::size_t>(action.chunk)];
    const bool is_forward = action.kind == ActionKind::forward;
    const bool is_weight = action.kind == ActionKind::backward_weight;
    Index& counter = is_forward ? done.forward : is_weight ? done.weight : done.input;
    if (counter == schedule.micro_batches)
      refuse(schedule, stage, i, "comes after all {} micro-batches", schedule.micro_batches);
    if (action.micro_batch != counter)
      refuse(schedule, stage, i, "is out of order: micro-batch {} is due", counter);
    if (!is_forward && counter >= (is_weight ? done.input : done.forward))
      refuse(schedule, stage, i, "comes before its {}",
             name_of(is_weight ? ActionKind::backward_input : ActionKind::forward));
    const bool reduces = action.kind == last_kind && action.micro_batch + 1 == schedule.micro_batches;
    if (action.reduces != reduces)
      refuse(schedule, stage, i, "has reduces = {}, but the chunk's gradients are {} after it",
             action.reduces, reduces ? "complete" : "not complete");
    ++counter;
    if (is_forward && ++alive > memory_bound && memory_bound > 0)
      refuse(schedule, stage, i, "keeps {} micro-batch chunks alive: the bound is {}", alive, memory_bound);
    if (action.kind == last_kind) --alive;
  }
  for (int chunk = 0; chunk < schedule.chunks; ++chunk) {
    const Done& done = chunks[static_cast<std::size_t>(chunk)];
    const auto require = [&](ActionKind kind, Index count) {
      if (count != schedule.micro_batches)
        throw InternalError("schedule {}: stage {} lacks {} of micro-batch {}, chunk {}", schedule.name,
                            stage, name_of(kind), count, chunk);
    };
    require(ActionKind::forward, done.forward);
    require(split ? ActionKind::backward_input : ActionKind::backward, done.input);
    if (split) require(ActionKind::backward_weight, done.weight);
  }
}

enum class Channel { activations, gradients };

Channel channel_of(const Action& action) {
  return action.kind == ActionKind::forward ? Channel::activations : Channel::gradients;
}
std::string_view name_of(Channel channel) {
  return channel == Channel::activations ? "activations" : "gradients";
}

/// The next action from `position` on that sends (receives) on `channel`; the end if there is none.
std::size_t next_sending(const Schedule& schedule, std::size_t stage, std::size_t position, Channel channel) {
  const std::vector<Action>& actions = schedule.stages[stage];
  while (position < actions.size() &&
         !(channel_of(actions[position]) == channel && route_of(schedule, stage, actions[position]).to))
    ++position;
  return position;
}
std::size_t next_receiving(const Schedule& schedule, std::size_t stage, std::size_t position,
                           Channel channel) {
  const std::vector<Action>& actions = schedule.stages[stage];
  while (position < actions.size() &&
         !(channel_of(actions[position]) == channel && route_of(schedule, stage, actions[position]).from))
    ++position;
  return position;
}

/// Messages have no addresses: the n-th one sent must be the n-th one received. Counts are equal already.
void check_channel(const Schedule& schedule, std::size_t sender, Channel channel) {
  const std::size_t stages = schedule.stages.size();
  const bool is_forward = channel == Channel::activations;
  const std::size_t receiver = (sender + (is_forward ? 1 : stages - 1)) % stages;
  const std::vector<Action>&out = schedule.stages[sender], &in = schedule.stages[receiver];
  for (std::size_t i = 0, j = 0;; ++i, ++j) {
    i = next_sending(schedule, sender, i, channel);
    j = next_receiving(schedule, receiver, j, channel);
    if (i == out.size() || j == in.size()) return;
    const int part = part_of(schedule, sender, out[i].chunk) + (is_forward ? 1 : -1);
    if (out[i].micro_batch != in[j].micro_batch || part != part_of(schedule, receiver, in[j].chunk))
      refuse(schedule, sender, i, "sends its {} when {} receives next", name_of(channel),
             describe(schedule, receiver, j));
  }
}

/// The stages with their channels, but without clocks: an action takes no time.
class Execution {
 public:
  /// With `rendezvous` a send waits until its receive is posted, which is when the one before it is taken.
  Execution(const Schedule& schedule, bool rendezvous)
      : schedule_(schedule), rendezvous_(rendezvous), stages_(schedule.stages.size()) {
    run_until_stuck(stages_.size(), [this](std::size_t stage) { return step(stage); });
  }

  /// The first stage that is not at its end, and what it waits for.
  void throw_if_stuck() const {
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
      const State& state = stages_[stage];
      if (state.position == schedule_.stages[stage].size()) continue;
      const Action& action = schedule_.stages[stage][state.position];
      const Route route = route_of(schedule_, stage, action);
      const std::size_t other = state.is_computed ? *route.to : *route.from;
      const std::string there = describe(schedule_, other, stages_[other].position);
      if (state.is_computed)
        refuse(schedule_, stage, state.position,
               "waits for ever to send its {} where sends wait for their receives: {} has not posted it",
               name_of(channel_of(action)), there);
      refuse(schedule_, stage, state.position, "waits for ever for {} from {}", name_of(channel_of(action)),
             there);
    }
  }

 private:
  struct State {
    std::size_t position = 0;
    bool is_computed = false;                 ///< the action at `position`; its result is to be sent
    std::array<Index, 2> received{}, sent{};  ///< messages, by channel
  };

  /// The first half of an action takes its input, the second half sends its result.
  bool step(std::size_t stage) {
    State& state = stages_[stage];
    const std::vector<Action>& actions = schedule_.stages[stage];
    if (state.position == actions.size()) return false;
    const Action& action = actions[state.position];
    const Route route = route_of(schedule_, stage, action);
    const auto channel = static_cast<std::size_t>(channel_of(action));
    if (!state.is_computed) {
      if (route.from && stages_[*route.from].sent[channel] == state.received[channel]) return false;
      if (route.from) ++state.received[channel];
      state.is_computed = true;
      return true;  // what sends to this stage may go on
    }
    if (route.to) {
      if (rendezvous_ && state.sent[channel] > stages_[*route.to].received[channel]) return false;
      ++state.sent[channel];
    }
    state.is_computed = false;
    ++state.position;
    return true;
  }

  const Schedule& schedule_;
  bool rendezvous_;
  std::vector<State> stages_;
};

}  // namespace

void validate(const Schedule& schedule, Index memory_bound) {
  if (schedule.stages.empty() || schedule.micro_batches < 1 || schedule.chunks < 1 ||
      (schedule.chunks > 1 && schedule.stages.size() == 1))
    throw InternalError(
        "schedule {}: {} stages, {} micro-batches and {} chunks a stage: needs one of each, and two stages "
        "where there are several chunks",
        schedule.name, schedule.stages.size(), schedule.micro_batches, schedule.chunks);
  const bool split = is_split(schedule);
  for (std::size_t stage = 0; stage < schedule.stages.size(); ++stage)
    check_stage(schedule, stage, split, memory_bound);
  for (std::size_t stage = 0; stage < schedule.stages.size(); ++stage) {
    check_channel(schedule, stage, Channel::activations);
    check_channel(schedule, stage, Channel::gradients);
  }
  // What comes to an end where sends wait does so where they do not; where it does not, the simpler reason is
  // the better message.
  const Execution strict(schedule, true);
  try {
    strict.throw_if_stuck();
  } catch (const InternalError&) {
    Execution(schedule, false).throw_if_stuck();
    throw;
  }
}

}  // namespace cartan::pipeline
