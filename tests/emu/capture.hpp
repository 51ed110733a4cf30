// Graphs: a captured sequence of work with forks and joins between streams, launched as often as wanted. A
// launch replays the sequence in streams of its own, one for each captured stream, with the captured records
// and waits; that gives the graph's order, and the checks of streams hold for graphs too.
#pragma once

#include <cuda_runtime_api.h>

#include "executor.hpp"

namespace emu {

/// The work becomes part of the graph instead of running.
cudaError_t capture_work(CUstream_st& stream, Request request);
cudaError_t capture_record(CUstream_st& stream, CUevent_st& event);
/// A stream joins the capture of the event that it waits for.
cudaError_t capture_wait(CUstream_st& stream, CUevent_st& event);

/// The host asks about an event that only a graph will record.
cudaError_t refuse_captured_event(const char* call);

/// A call that a capture does not survive: reports it and spoils the captures under way. False if there are
/// none.
bool invalidate_captures(const char* call);

}  // namespace emu
