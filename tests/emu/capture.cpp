#include "capture.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "findings.hpp"

namespace emu {
namespace {

/// One entry of the captured sequence.
struct Node {
  enum class Kind { work, record, wait };
  Kind kind;
  std::size_t branch;      ///< number of the captured stream; 0 is the one that the capture began in
  Request request{};       ///< of work
  std::size_t record = 0;  ///< of a wait: the entry that recorded the event
};

/// Whether all work is before the end of branch 0. From the end backwards: up to where each branch must have
/// come for branch 0 to be where it is.
bool is_joined(const std::vector<Node>& nodes, std::size_t branches) {
  std::vector<std::size_t> reached(branches, 0);
  reached[0] = nodes.size();
  for (std::size_t i = nodes.size(); i-- > 0;) {
    const Node& node = nodes[i];
    if (node.kind != Node::Kind::wait || i >= reached[node.branch]) continue;
    std::size_t& other = reached[nodes[node.record].branch];
    other = std::max(other, node.record);
  }
  for (std::size_t i = 0; i < nodes.size(); ++i)
    if (nodes[i].kind == Node::Kind::work && i >= reached[nodes[i].branch]) return false;
  return true;
}

}  // namespace

class Capture {
 public:
  CUstream_st* origin = nullptr;
  bool is_invalid = false;
  std::vector<CUstream_st*> branches;
  std::vector<Node> nodes;

  std::size_t branch_of(const CUstream_st& stream) const {
    const auto found = std::find(branches.begin(), branches.end(), &stream);
    return static_cast<std::size_t>(found - branches.begin());
  }
  void add_branch(CUstream_st& stream) {
    branches.push_back(&stream);
    stream.capture = this;
  }
};

}  // namespace emu

struct CUgraph_st {
  std::vector<emu::Node> nodes;
  std::size_t branches;
};

struct CUgraphExec_st {
  std::vector<emu::Node> nodes;
  std::vector<CUstream_st*> streams;  ///< one a branch
};

namespace emu {
namespace {

// Events remember their capture: captures are kept. Never destroyed, as all of this.
std::vector<std::unique_ptr<Capture>>& captures = *new std::vector<std::unique_ptr<Capture>>;

bool is_under_way(const Capture& capture) { return capture.origin != nullptr; }

cudaError_t refuse(const std::string& why, cudaError_t error) {
  report("stream capture: " + why);
  return error;
}

cudaError_t launch(CUgraphExec_st& graph, CUstream_st& stream) {
  const std::shared_ptr<Event> begin = push_record(&stream);
  for (CUstream_st* const branch : graph.streams) push_wait(branch, begin);
  std::map<std::size_t, std::shared_ptr<Event>> recorded;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    CUstream_st* const branch = graph.streams[node.branch];
    if (node.kind == Node::Kind::record)
      recorded[i] = push_record(branch);
    else if (node.kind == Node::Kind::wait)
      push_wait(branch, recorded.at(node.record));
    else
      enqueue(branch, node.request);
  }
  for (CUstream_st* const branch : graph.streams) push_wait(&stream, push_record(branch));
  return sticky_error();
}

}  // namespace

cudaError_t capture_work(CUstream_st& stream, Request request) {
  Capture& capture = *stream.capture;
  if (capture.is_invalid) return cudaErrorStreamCaptureInvalidated;
  capture.nodes.push_back({Node::Kind::work, capture.branch_of(stream), std::move(request)});
  return cudaSuccess;
}

cudaError_t capture_record(CUstream_st& stream, CUevent_st& event) {
  Capture& capture = *stream.capture;
  if (capture.is_invalid) return cudaErrorStreamCaptureInvalidated;
  event.capture = &capture;
  event.captured_at = capture.nodes.size();
  capture.nodes.push_back({Node::Kind::record, capture.branch_of(stream)});
  return cudaSuccess;
}

cudaError_t capture_wait(CUstream_st& stream, CUevent_st& event) {
  if (event.capture == nullptr) {
    stream.capture->is_invalid = true;
    return refuse("a captured stream waits for an event that was recorded outside of the capture",
                  cudaErrorStreamCaptureIsolation);
  }
  Capture& capture = *event.capture;
  if (!is_under_way(capture))
    return refuse("a wait for an event that was last recorded in a capture that has ended",
                  cudaErrorCapturedEvent);
  if (stream.capture != nullptr && stream.capture != &capture) {
    capture.is_invalid = stream.capture->is_invalid = true;
    return refuse("an event of one capture is waited for in another", cudaErrorStreamCaptureMerge);
  }
  if (capture.is_invalid) return cudaErrorStreamCaptureInvalidated;
  if (stream.capture == nullptr) capture.add_branch(stream);
  capture.nodes.push_back({Node::Kind::wait, capture.branch_of(stream), {}, event.captured_at});
  return cudaSuccess;
}

cudaError_t refuse_captured_event(const char* call) {
  return refuse(std::string(call) + " of an event that was last recorded in a captured stream",
                cudaErrorCapturedEvent);
}

bool invalidate_captures(const char* call) {
  bool any = false;
  for (const auto& capture : captures) {
    if (!is_under_way(*capture)) continue;
    any = capture->is_invalid = true;
  }
  if (any) report("stream capture: " + std::string(call) + " while a stream is captured");
  return any;
}

}  // namespace emu

using emu::api, emu::Capture, emu::Capturing;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  return api("cudaStreamBeginCapture", cudaErrorStreamCaptureUnsupported, Capturing::allowed, [&] {
    const std::lock_guard lock(emu::big_lock());
    if (stream == nullptr) return emu::refuse("of the null stream", cudaErrorStreamCaptureUnsupported);
    if (stream->capture != nullptr) return emu::refuse("of a captured stream", cudaErrorIllegalState);
    emu::captures.push_back(std::make_unique<Capture>());
    Capture& capture = *emu::captures.back();
    capture.origin = stream;
    capture.add_branch(*stream);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return api("cudaStreamIsCapturing", cudaErrorLaunchFailure, Capturing::allowed, [&] {
    const std::lock_guard lock(emu::big_lock());
    const Capture* const capture = stream == nullptr ? nullptr : stream->capture;
    *status = capture == nullptr    ? cudaStreamCaptureStatusNone
              : capture->is_invalid ? cudaStreamCaptureStatusInvalidated
                                    : cudaStreamCaptureStatusActive;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return api("cudaStreamEndCapture", cudaErrorStreamCaptureInvalidated, Capturing::allowed, [&] {
    const std::lock_guard lock(emu::big_lock());
    *graph = nullptr;
    if (stream == nullptr || stream->capture == nullptr)
      return emu::refuse("the end of one that has not begun", cudaErrorIllegalState);
    Capture& capture = *stream->capture;
    if (capture.origin != stream) {
      capture.is_invalid = true;
      return emu::refuse("it ends in another stream than it began in", cudaErrorStreamCaptureUnmatched);
    }
    for (CUstream_st* const branch : capture.branches) branch->capture = nullptr;
    capture.origin = nullptr;
    if (capture.is_invalid) return cudaErrorStreamCaptureInvalidated;
    if (!emu::is_joined(capture.nodes, capture.branches.size()))
      return emu::refuse("work of another stream is not joined at the end", cudaErrorStreamCaptureUnjoined);
    *graph = new CUgraph_st{std::move(capture.nodes), capture.branches.size()};
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  return api("cudaGraphInstantiate", cudaErrorMemoryAllocation, Capturing::allowed, [&] {
    if (graph == nullptr) return cudaErrorInvalidValue;
    *executable = new CUgraphExec_st{graph->nodes, {}};
    while ((*executable)->streams.size() < graph->branches)
      (*executable)->streams.push_back(emu::make_stream());
    return cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return api("cudaGraphLaunch", cudaErrorLaunchFailure, Capturing::allowed, [&] {
    const std::lock_guard lock(emu::big_lock());
    CUstream_st* const queue = emu::real_stream(stream);
    if (executable == nullptr) return cudaErrorInvalidValue;
    if (queue->capture != nullptr)
      return emu::refuse("a graph in a graph is not emulated", cudaErrorStreamCaptureUnsupported);
    return emu::launch(*executable, *queue);
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  const std::lock_guard lock(emu::big_lock());
  if (executable == nullptr) return emu::remember(cudaErrorInvalidValue);
  for (CUstream_st* const stream : executable->streams) stream->destroyed = true;
  delete executable;
  return emu::sticky_error();
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  const std::lock_guard lock(emu::big_lock());
  if (graph == nullptr) return emu::remember(cudaErrorInvalidValue);
  delete graph;
  return emu::sticky_error();
}
}
