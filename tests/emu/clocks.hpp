// Which operation happens before which: vector clocks. A stream counts its operations; an event keeps the
// clock of the stream at the point where it was recorded, a wait joins it into the waiting stream's, a wait
// of the host joins it into the host's, and enqueueing joins the host's into the operation's. Two operations
// that touch the same bytes without one happening before the other are a race in every schedule, also when
// the result happens to be right.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace emu {

/// Operations so far, by the number of the stream; 0 is the host.
using Clock = std::vector<std::uint32_t>;

/// Elementwise maximum.
void join(Clock& clock, const Clock& other);

/// What is known of an operation once it has begun.
struct OperationRecord {
  int stream = 0;
  std::uint32_t sequence = 0;  ///< among the operations of its stream
  Clock clock;
  std::string name;
  const void* kernel = nullptr;
};

/// The operation's number, from 1. Numbers stay valid as long as the program runs.
std::uint32_t add_operation(OperationRecord record);

/// Whether operation `a` is ordered before `b`; true where they are the same, or `a` is the host (0).
bool happens_before(std::uint32_t a, std::uint32_t b);

std::string op_name(std::uint32_t operation);

/// The operation that is being executed, 0 outside of any.
extern std::uint32_t running_op;

}  // namespace emu
