#include "executor.hpp"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "capture.hpp"
#include "errors.hpp"
#include "findings.hpp"
#include "settings.hpp"

namespace emu {
namespace {

using Time = std::chrono::steady_clock;
using Lock = std::unique_lock<std::recursive_mutex>;

struct Executor {
  std::vector<std::unique_ptr<CUstream_st>> streams;
  CUstream_st* null_stream = nullptr;
  Clock host = {0};
  std::mt19937 random{config.seed};
  std::uint64_t finished = 0;  ///< operations
  Time::time_point last_call;  ///< of the host
  bool has_progress_thread = false;
};

// Never destroyed: the progress thread may outlive main.
Executor& executor() {
  static Executor& the_one = *new Executor;
  return the_one;
}

bool is_blocked(const CUstream_st& stream) {
  const Operation& head = stream.queue.front();
  return head.waits != nullptr && !head.waits->done;
}

/// Tries to run the head of the queue; whether something happened.
bool advance(CUstream_st& stream) {
  if (stream.queue.empty() || is_blocked(stream)) return false;
  Operation& operation = stream.queue.front();
  join(stream.clock, operation.host);
  if (operation.waits != nullptr) join(stream.clock, operation.waits->clock);
  const auto index = static_cast<std::size_t>(stream.index);
  if (index >= stream.clock.size()) stream.clock.resize(index + 1);
  const std::uint32_t sequence = stream.clock[index] + 1;
  if (operation.work) {
    // It keeps its number while it is pending, or races would be blamed on others.
    if (operation.id == 0)
      operation.id = add_operation({stream.index, sequence, stream.clock, operation.name, operation.kernel});
    const std::uint32_t outer = std::exchange(running_op, operation.id);
    const Step step = operation.work();
    running_op = outer;
    if (step == Step::pending) return false;
  }
  stream.clock[index] = sequence;
  if (operation.record != nullptr) {
    operation.record->clock = stream.clock;
    operation.record->done = true;
    operation.record->time = std::chrono::steady_clock::now();
  }
  stream.queue.pop_front();
  ++executor().finished;
  return true;
}

/// Runs what the head of the queue needs, and nothing else.
bool advance_towards(CUstream_st& stream) {
  CUstream_st* next = &stream;
  while (!next->queue.empty() && is_blocked(*next)) next = next->queue.front().waits->stream;
  return advance(*next);
}

std::vector<CUstream_st*> streams_in_turn() {
  std::vector<CUstream_st*> turn;
  for (const auto& stream : executor().streams)
    if (!stream->queue.empty()) turn.push_back(stream.get());
  if (config.schedule == Schedule::random) std::shuffle(turn.begin(), turn.end(), executor().random);
  return turn;
}

bool advance_any() {
  for (CUstream_st* const stream : streams_in_turn())
    if (advance(*stream)) return true;
  return false;
}

bool is_needed_by_peers(const CUstream_st& stream) {
  return std::any_of(stream.queue.begin(), stream.queue.end(),
                     [](const Operation& operation) { return operation.needs_peers; });
}

/// Runs what other processes may wait for.
bool advance_for_peers() {
  for (CUstream_st* const stream : streams_in_turn())
    if (is_needed_by_peers(*stream) && advance_towards(*stream)) return true;
  return false;
}

/// One step that the schedule allows while the host waits for `goal`.
bool advance_for(CUstream_st* goal) {
  if (config.schedule != Schedule::lazy) return advance_any();
  return (goal != nullptr && advance_towards(*goal)) || advance_for_peers();
}

/// Ranks share few cores: who has nothing to do lets others work.
class Patience {
 public:
  void reset() { idle_ = 0; }
  void wait() {
    constexpr int kYields = 50;
    if (++idle_ <= kYields)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(std::min(500, 10 * (idle_ - kYields))));
  }

 private:
  int idle_ = 0;
};

void report_deadlock() {
  std::string text = "deadlock: no stream can go on";
  for (const auto& stream : executor().streams) {
    if (stream->queue.empty()) continue;
    const Operation& head = stream->queue.front();
    text += "\n  stream " + std::to_string(stream->index) + ": " + head.name +
            (is_blocked(*stream) ? " (waits for an event)" : " (waits for peers)");
  }
  report(std::move(text));
  for (const auto& stream : executor().streams) stream->queue.clear();
  set_sticky_error(cudaErrorLaunchTimeout);
}

/// A device goes on while the host is busy elsewhere: so does this thread, once the host has been away for a
/// while.
void make_progress() {
  constexpr auto kRest = std::chrono::milliseconds(1), kAway = std::chrono::milliseconds(5);
  for (;;) {
    std::this_thread::sleep_for(kRest);
    const Lock lock(big_lock(), std::try_to_lock);
    if (!lock || Time::now() - executor().last_call < kAway) continue;
    while (config.schedule == Schedule::lazy ? advance_for_peers() : advance_any()) {
    }
  }
}

}  // namespace

CUstream_st* make_stream() {
  const Lock lock(big_lock());
  Executor& e = executor();
  // A number is used again when the host has seen the end of what ran under it.
  for (const auto& stream : e.streams) {
    const auto index = static_cast<std::size_t>(stream->index);
    const std::uint32_t last = index < stream->clock.size() ? stream->clock[index] : 0;
    const bool is_seen = last == 0 || (index < e.host.size() && e.host[index] >= last);
    if (stream->destroyed && stream->queue.empty() && is_seen) {
      stream->destroyed = false;
      join(stream->clock, e.host);
      return stream.get();
    }
  }
  e.streams.push_back(std::make_unique<CUstream_st>());
  CUstream_st* const made = e.streams.back().get();
  made->index = static_cast<int>(e.streams.size());
  made->clock = e.host;
  return made;
}

CUstream_st* real_stream(cudaStream_t stream) {
  if (stream != nullptr) return stream;
  Executor& e = executor();
  if (e.null_stream == nullptr) e.null_stream = make_stream();
  return e.null_stream;
}

void push(CUstream_st* stream, Operation operation) {
  const Lock lock(big_lock());
  Executor& e = executor();
  e.last_call = Time::now();
  operation.host = e.host;
  stream->queue.push_back(std::move(operation));
  if (config.schedule == Schedule::eager)
    while (advance_any()) {
    }
  else if (config.schedule == Schedule::random && e.random() % 2 == 0)
    advance_any();
}

std::shared_ptr<Event> push_record(CUstream_st* stream) {
  auto event = std::make_shared<Event>();
  event->stream = stream;
  Operation operation;
  operation.name = "record of an event";
  operation.record = event;
  push(stream, std::move(operation));
  return event;
}

void push_wait(CUstream_st* stream, std::shared_ptr<Event> event) {
  Operation operation;
  operation.name = "wait for an event";
  operation.waits = std::move(event);
  push(stream, std::move(operation));
}

cudaError_t enqueue(cudaStream_t stream, Request request) {
  const Lock lock(big_lock());
  if (sticky_error() != cudaSuccess) return sticky_error();
  CUstream_st* const queue = real_stream(stream);
  if (queue->destroyed) {
    report(request.name + " in a stream that was destroyed");
    return cudaErrorInvalidResourceHandle;
  }
  if (queue->capture != nullptr) return capture_work(*queue, std::move(request));
  if (stream == nullptr && invalidate_captures(request.name.c_str())) return cudaErrorStreamCaptureImplicit;
  Operation operation;
  operation.work = request.start();
  operation.name = std::move(request.name);
  operation.kernel = request.kernel;
  operation.needs_peers = request.needs_peers;
  push(queue, std::move(operation));
  return sticky_error();
}

cudaError_t enqueue(cudaStream_t stream, std::string name, Work work) {
  return enqueue(stream, Request{std::move(name), [work = std::move(work)] { return work; }});
}

void wait_until(const std::function<bool()>& done, CUstream_st* goal) {
  Executor& e = executor();
  Patience patience;
  auto since = Time::now();
  std::uint64_t finished = e.finished;
  for (;;) {
    Lock lock(big_lock());
    if (done()) return;
    e.last_call = Time::now();
    if (advance_for(goal)) {
      patience.reset();
      continue;
    }
    const auto now = Time::now();
    if (std::exchange(finished, e.finished) != e.finished) since = now;
    if (std::chrono::duration<double>(now - since).count() > config.timeout_s) {
      report_deadlock();
      return;
    }
    lock.unlock();
    patience.wait();
  }
}

void wait_for_stream(CUstream_st* stream) {
  wait_until([&] { return stream->queue.empty(); }, stream);
  const Lock lock(big_lock());
  join(executor().host, stream->clock);
}

void wait_for_event(const std::shared_ptr<Event>& event) {
  wait_until([&] { return event->done; }, event->stream);
  const Lock lock(big_lock());
  join(executor().host, event->clock);
}

void wait_for_device() {
  // By number: another thread may add streams meanwhile.
  for (std::size_t i = 0;; ++i) {
    CUstream_st* stream = nullptr;
    {
      const Lock lock(big_lock());
      if (i >= executor().streams.size()) return;
      stream = executor().streams[i].get();
    }
    wait_for_stream(stream);
  }
}

void poke(CUstream_st* goal) {
  const Lock lock(big_lock());
  executor().last_call = Time::now();
  advance_for(goal);
}

void need_progress() {
  const Lock lock(big_lock());
  if (!std::exchange(executor().has_progress_thread, true)) std::thread(make_progress).detach();
}

void reset() {
  const Lock lock(big_lock());
  for (const auto& stream : executor().streams) {
    stream->queue.clear();
    stream->capture = nullptr;
  }
  clear_errors();
  take_reports();
  executor().random.seed(config.seed);
}

}  // namespace emu
