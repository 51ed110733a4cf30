#include "nccl_group.hpp"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "runtime.h"

namespace emu::nccl {
namespace {

thread_local int depth = 0;
thread_local ncclResult_t failed = ncclSuccess;
thread_local std::vector<Task> tasks;

/// What a group brings to one communicator. Groups of a communicator run one after another in the order of
/// issue, whatever their streams: a receive that waits for its message holds up the send behind it.
struct Turn {
  std::uint64_t number = 0;  ///< from 1, once something of it is enqueued
  int left = 0;              ///< bundles that have not ended
};

/// The tasks of one communicator in one stream.
struct Bundle {
  Shared communicator;
  cudaStream_t stream;
  std::vector<Task> tasks;
  std::shared_ptr<Turn> turn;  ///< where the group uses several streams; else each start takes one
};

std::vector<Bundle> bundles_of(std::vector<Task> all) {
  std::vector<Bundle> bundles;
  for (Task& task : all) {
    const auto same = std::find_if(bundles.begin(), bundles.end(), [&](const Bundle& bundle) {
      return bundle.communicator == task.communicator && bundle.stream == task.stream;
    });
    if (same != bundles.end()) {
      same->tasks.push_back(std::move(task));
      continue;
    }
    const auto sibling = std::find_if(bundles.begin(), bundles.end(), [&](const Bundle& bundle) {
      return bundle.communicator == task.communicator;
    });
    std::shared_ptr<Turn> turn;
    if (sibling != bundles.end()) {
      if (sibling->turn == nullptr) sibling->turn = std::make_shared<Turn>(Turn{0, 1});
      turn = sibling->turn;
      ++turn->left;
    }
    bundles.push_back({task.communicator, task.stream, {}, std::move(turn)});
    bundles.back().tasks.push_back(std::move(task));
  }
  return bundles;
}

Request request_of(const Bundle& bundle) {
  Request request;
  for (const Task& task : bundle.tasks) request.name += (request.name.empty() ? "" : ", ") + task.name;
  request.name += " of communicator " + bundle.communicator->name;
  request.needs_peers = true;
  request.start = [communicator = bundle.communicator, all = bundle.tasks, of_group = bundle.turn] {
    const auto turn = of_group != nullptr ? of_group : std::make_shared<Turn>(Turn{0, 1});
    if (turn->number == 0) turn->number = ++communicator->turns;
    const auto left = std::make_shared<std::vector<Work>>();
    for (const Task& task : all) left->push_back(task.start());
    // Counts as pending until the operation is gone, whether it ran or was given up.
    ++communicator->pending;
    const std::shared_ptr<void> ticket(nullptr, [communicator, turn](void*) {
      --communicator->pending;
      if (--turn->left == 0) ++communicator->turns_ended;
    });
    return [communicator, left, ticket, turn] {
      if (communicator->is_aborted) return Step::done;
      if (communicator->turns_ended + 1 != turn->number) return Step::pending;
      // All go on together: a message waits for its peer while others of the group pass.
      std::erase_if(*left, [](const Work& work) { return work() == Step::done; });
      return left->empty() ? Step::done : Step::pending;
    };
  };
  return request;
}

ncclResult_t launch(std::vector<Task> all) {
  const std::lock_guard lock(big_lock());
  ncclResult_t result = ncclSuccess;
  for (const Bundle& bundle : bundles_of(std::move(all))) {
    Communicator& communicator = *bundle.communicator;
    const auto start = [bundle] { enqueue(bundle.stream, request_of(bundle)); };
    const bool is_first = !std::exchange(communicator.has_started, true);
    if (!communicator.is_blocking && (is_first || !communicator.deferred.empty())) {
      if (!is_first)
        misuse("communicator " + communicator.name +
               " does not block, and a group before this one is still in progress: ask ncclCommGetAsyncError "
               "first");
      communicator.deferred.push_back(start);
      result = ncclInProgress;
    } else {
      start();
    }
  }
  return sticky_error() != cudaSuccess ? ncclUnhandledCudaError : result;
}

}  // namespace

bool is_in_group() { return depth > 0; }

ncclResult_t add(Task task) {
  if (is_in_group()) {
    tasks.push_back(std::move(task));
    return ncclSuccess;
  }
  std::vector<Task> alone;
  alone.push_back(std::move(task));
  return launch(std::move(alone));
}

ncclResult_t fail(ncclResult_t result) {
  if (is_in_group()) failed = result;
  return result;
}

}  // namespace emu::nccl

using namespace emu::nccl;

extern "C" {

ncclResult_t ncclGroupStart() {
  if (const ncclResult_t early = begin_call("ncclGroupStart"); early != ncclSuccess) return early;
  ++depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (depth == 0) return misuse("ncclGroupEnd without ncclGroupStart");
  const ncclResult_t early = begin_call("ncclGroupEnd");
  if (--depth > 0) return early;
  std::vector<Task> all = std::exchange(tasks, {});
  const ncclResult_t error = std::exchange(failed, ncclSuccess);
  if (early != ncclSuccess) return early;
  return error != ncclSuccess ? error : launch(std::move(all));
}
}
