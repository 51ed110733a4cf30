#include "clocks.hpp"

#include <algorithm>
#include <deque>

#include "symbols.hpp"

namespace emu {

std::uint32_t running_op = 0;

namespace {

// Never destroyed: the progress thread may outlive main. The first one is the host.
std::deque<OperationRecord>& operations = *new std::deque<OperationRecord>(1);

}  // namespace

void join(Clock& clock, const Clock& other) {
  if (clock.size() < other.size()) clock.resize(other.size());
  for (std::size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

std::uint32_t add_operation(OperationRecord record) {
  operations.push_back(std::move(record));
  return static_cast<std::uint32_t>(operations.size() - 1);
}

bool happens_before(std::uint32_t a, std::uint32_t b) {
  if (a == 0 || a == b) return true;
  const OperationRecord &first = operations[a], &second = operations[b];
  if (first.stream == second.stream) return first.sequence < second.sequence;
  const auto stream = static_cast<std::size_t>(first.stream);
  return stream < second.clock.size() && second.clock[stream] >= first.sequence;
}

std::string op_name(std::uint32_t operation) {
  const OperationRecord& record = operations[operation];
  return record.kernel == nullptr ? record.name : "kernel " + kernel_name(record.kernel);
}

}  // namespace emu
