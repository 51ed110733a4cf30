// The data plane of one group, run inside a stream's task: two implementations, through shared memory inside
// a node and by messages between nodes. All calls are collective and block the calling thread until this rank
// may go on.
#pragma once

#include <cstring>
#include <span>

#include "cartan/comm/communicator.hpp"
#include "comm/reduction.hpp"

namespace cartan::comm {

/// Which ranks receive the sum: the owner of each chunk alone, or all.
enum class Reach { scatter, all };

class Collectives {
 public:
  virtual ~Collectives() = default;
  virtual void all_gather_parts(std::span<const ByteView> parts) = 0;
  virtual void all_to_all(ConstByteView in, ByteView out) = 0;
  virtual void broadcast(ByteView data, int root) = 0;
  /// The canonical sum of slots of `count` floats. scatter: this rank's chunk goes to its stack; all: every
  /// chunk to slots[0] of every rank (the stack is then slots[0] + begin of this rank's chunk).
  virtual void reduce(const ReductionPlan& plan, std::span<float* const> slots, Index count,
                      std::span<float* const> stack, Reach reach) = 0;
};

/// Copies unless there is nothing to copy, or it is there already.
inline void copy_bytes(ConstByteView from, ByteView to) {
  if (!from.empty() && from.data() != to.data()) std::memcpy(to.data(), from.data(), from.size());
}

}  // namespace cartan::comm
