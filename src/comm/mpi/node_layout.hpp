// How the ranks of a group lie on nodes, and the two smaller groups that follow from it: the ranks of a node,
// and the ranks at the same place of every node.
#pragma once

#include <string>

#include "comm/mpi/handles.hpp"

namespace cartan::comm {

struct NodeLayout {
  bool one_node = false;   ///< all ranks share memory
  int ranks_per_node = 1;  ///< where nodes hold runs of consecutive ranks, equally many each; else 1
  CommHandle node;         ///< this node's ranks, and ...
  CommHandle peers;        ///< ... those at this rank's place; both null unless there are several of each
  bool two_levels() const { return !one_node && ranks_per_node > 1; }
};

/// `pretended` > 0: no more than so many neighbours of MPI_COMM_WORLD count as a node. Collective over
/// `comm`.
NodeLayout find_nodes(MPI_Comm comm, const std::string& name, int pretended);

}  // namespace cartan::comm
