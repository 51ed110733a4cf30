// Streams as queues of operations, and who decides which of them goes on.
//
// Nothing runs by itself: a head of a queue is executed when work is enqueued (schedule eager), while the
// host waits (lazy, random), or by the progress thread while the host is busy elsewhere and peers may wait
// for this process. An operation is a function that is called until it says that it is done; only those that
// wait for other processes say anything else.
#pragma once

#include <cuda_runtime_api.h>
#include <chrono>

#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "clocks.hpp"

namespace emu {

enum class Step { done, pending };
using Work = std::function<Step()>;

/// What a program asks of a stream.
struct Request {
  std::string name;
  /// Called when the work is enqueued, and again for each launch of a graph that holds it.
  std::function<Work()> start;
  const void* kernel = nullptr;  ///< for its name
  bool needs_peers = false;      ///< may wait for other processes, and they for it
};

cudaError_t enqueue(cudaStream_t stream, Request request);
/// Work that can be repeated as it is.
cudaError_t enqueue(cudaStream_t stream, std::string name, Work work);

/// One recording of a cudaEvent_t.
struct Event {
  bool done = false;
  Clock clock;
  CUstream_st* stream = nullptr;
  std::chrono::steady_clock::time_point time;  ///< when it happened
};

struct Operation {
  std::string name;
  Work work;                             ///< none: a record or a wait
  std::shared_ptr<Event> record, waits;  ///< done after, and needed before, the work
  const void* kernel = nullptr;
  bool needs_peers = false;
  Clock host{};          ///< the host's when it was enqueued
  std::uint32_t id = 0;  ///< once it has begun
};

class Capture;

CUstream_st* make_stream();
/// The legacy default stream for null.
CUstream_st* real_stream(cudaStream_t stream);
void push(CUstream_st* stream, Operation operation);
std::shared_ptr<Event> push_record(CUstream_st* stream);
void push_wait(CUstream_st* stream, std::shared_ptr<Event> event);

/// The host waits: drives the streams until done(), or reports a deadlock. `goal` is the stream to run first.
void wait_until(const std::function<bool()>& done, CUstream_st* goal);
void wait_for_stream(CUstream_st* stream);
void wait_for_event(const std::shared_ptr<Event>& event);
void wait_for_device();
/// Something that the host asked about may go on; returns at once.
void poke(CUstream_st* goal);

/// From now on queues go on while the host is away: peers may wait for this process.
void need_progress();

/// Between tests: forgets queued work, errors and findings.
void reset();

}  // namespace emu

struct CUstream_st {
  int index = 0;
  std::deque<emu::Operation> queue;
  emu::Clock clock;
  bool destroyed = false;
  emu::Capture* capture = nullptr;  ///< that records what is enqueued here
};

struct CUevent_st {
  std::shared_ptr<emu::Event> last;
  emu::Capture* capture = nullptr;  ///< the last record was captured
  std::size_t captured_at = 0;
};
