// Memory that the ranks of a group on one node write and read directly.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "cartan/comm/communicator.hpp"

namespace cartan::comm {

/// A part for each rank. Its destruction is collective.
class NodeMemory {
 public:
  virtual ~NodeMemory() = default;
  /// Where rank `rank`'s part begins here; at a cache line.
  virtual std::byte* part(int rank) const = 0;
  /// What any rank wrote to any part before is there for every rank after. Collective.
  virtual void meet() = 0;
};

/// `size_bytes` for each rank, of arbitrary content. Null on every rank where they cannot reach each other
/// so: several nodes, CARTAN_COMM=messages, one rank, or no room on the node. `comm` is used until the memory
/// is gone. Collective.
std::unique_ptr<NodeMemory> make_node_memory(Communicator& comm, std::size_t size_bytes,
                                             std::string_view label);

}  // namespace cartan::comm
