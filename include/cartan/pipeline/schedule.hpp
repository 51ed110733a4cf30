// Schedules as data: for each stage a list of actions. A schedule is generated, checked, simulated, drawn and
// executed; the executor is a loop over one stage's list.
//
// A model is cut into parts. Each of p stages holds `chunks` of them: chunk c of stage s is part c * p + s,
// so parts follow each other around the ring of stages. Stages exchange through FIFO channels: activations go
// to the next stage (from the last one to the first for the next chunk), gradients the other way. Each stage
// sends after an action and receives before one, in the order of its list.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cartan/core/error.hpp"
#include "cartan/core/types.hpp"

namespace cartan::pipeline {

enum class ActionKind {
  forward,          ///< units of the part in order
  backward,         ///< dgrad and wgrad of each unit in reverse
  backward_input,   ///< dgrad alone
  backward_weight,  ///< wgrad alone
};
/// "forward", "backward", "backward_input", "backward_weight".
std::string_view name_of(ActionKind kind);

struct Action {
  ActionKind kind = ActionKind::forward;
  Index micro_batch = 0;
  int chunk = 0;
  /// The gradients of this chunk are complete for the step after this action: it is the chunk's last backward
  /// or backward_weight.
  bool reduces = false;
  friend bool operator==(const Action&, const Action&) = default;
};

/// Actions of every stage. Of each chunk forward, backward and weight gradients run in ascending order of
/// micro-batches, so that sums over micro-batches have the same bits in every schedule.
struct Schedule {
  std::string name;
  Index micro_batches = 0;
  int chunks = 1;  ///< of each stage
  std::vector<std::vector<Action>> stages;
};

/// "gpipe", "1f1b", "interleaved", "zero-bubble": the words of pipeline.schedule.
const std::vector<std::string>& schedule_kinds();

/// Adds why there is no such schedule, with what would fit.
void check(std::string_view kind, int stages, Index micro_batches, int chunks, Problems& problems);

/// Throws ConfigError where check() finds a problem. Of p stages stage s keeps activations as told:
/// - gpipe: all forwards, then all backwards (Huang et al. 2019, arXiv:1811.06965); all micro-batches.
/// - 1f1b: p - 1 - s forwards, then forward and backward in turn; p - s micro-batches.
/// - interleaved: 1f1b with several chunks a stage (Narayanan et al. 2021, arXiv:2104.04473); min(v m,
///   2 (p - 1 - s) + (v - 1) g + 1) chunks of v a stage. The number m of micro-batches must be a multiple of
///   p, or between p and 2 p; micro-batches run in groups of g = p, or g = m below 2 p.
/// - zero-bubble: ZB-H1 (Qi et al. 2023, arXiv:2401.10241): weight gradients fill the gaps; at most p
///   micro-batches, as many as 1f1b on its first stage.
Schedule make_schedule(std::string_view kind, int stages, Index micro_batches, int chunks);

/// One stage: forward and backward of each micro-batch in turn, so that one set of activations is alive.
Schedule single_stage(Index micro_batches);

/// Throws InternalError that names schedule, stage and action unless
/// - each stage runs each action once, in ascending order, after those that it needs;
/// - `reduces` is set where the gradients of a chunk are complete;
/// - each stage sends in the order in which its neighbour receives, on each channel;
/// - no stage waits for ever, even where a send blocks until its receive is posted and a stage keeps one
///   receive posted on each channel: the first from the start, the next when an action has taken the one
///   before (rendezvous; buffered sends can only be easier);
/// - no stage keeps activations of more than `memory_bound` (micro-batch, chunk) pairs; 0: any number.
void validate(const Schedule& schedule, Index memory_bound = 0);

/// Pairs of (micro-batch, chunk) whose activations are alive at the same time on a stage, at most: from the
/// forward until the backward, where these are apart until the backward_weight.
Index in_flight(const Schedule& schedule, std::size_t stage);

/// The part of the model that is chunk `chunk` of stage `stage`.
int part_of(const Schedule& schedule, std::size_t stage, int chunk);

/// With which stages an action exchanges; none: the data are of this stage (a micro-batch, the loss).
struct Route {
  std::optional<std::size_t> from, to;
};
/// Forward actions exchange activations, backward and backward_input gradients, backward_weight nothing.
Route route_of(const Schedule& schedule, std::size_t stage, const Action& action);

/// Runs one stage's actions in order.
void execute(const Schedule& schedule, std::size_t stage, const std::function<void(const Action&)>& run);

}  // namespace cartan::pipeline
