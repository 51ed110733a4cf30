// Asks MPI who shares memory, and checks that the answer is regular.
#include "comm/mpi/node_layout.hpp"

#include <array>

#include "comm/mpi/check.hpp"

namespace cartan::comm {
namespace {

CommHandle split(MPI_Comm comm, int color, const std::string& name) {
  MPI_Comm raw = MPI_COMM_NULL;
  check(MPI_Comm_split(comm, color, 0, &raw), name, "set-up");
  CommHandle made(raw);
  check(MPI_Comm_set_errhandler(raw, MPI_ERRORS_RETURN), name, "set-up");
  return made;
}

}  // namespace

NodeLayout find_nodes(MPI_Comm comm, const std::string& name, int pretended) {
  MPI_Comm raw = MPI_COMM_NULL;
  check(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &raw), name, "set-up");
  CommHandle node(raw);
  check(MPI_Comm_set_errhandler(raw, MPI_ERRORS_RETURN), name, "set-up");
  if (pretended > 0) {
    int in_world = 0;
    check(MPI_Comm_rank(MPI_COMM_WORLD, &in_world), name, "set-up");
    node = split(node.get(), in_world / pretended, name);
  }
  int rank = 0, size = 0, place = 0, here = 0;
  check(MPI_Comm_rank(comm, &rank), name, "set-up");
  check(MPI_Comm_size(comm, &size), name, "set-up");
  check(MPI_Comm_rank(node.get(), &place), name, "set-up");
  check(MPI_Comm_size(node.get(), &here), name, "set-up");

  NodeLayout layout;
  // Places follow the order of ranks. If every rank is at the place that it would have in runs of `here`, the
  // first `here` ranks have only each other to precede them, so they are a node; and so on.
  std::array<int, 3> least{here, -here, rank % here == place ? 1 : 0};
  check(MPI_Allreduce(MPI_IN_PLACE, least.data(), 3, MPI_INT, MPI_MIN, comm), name, "set-up");
  const bool regular = least[0] == -least[1] && least[2] == 1;
  layout.one_node = regular && here == size;
  layout.ranks_per_node = regular ? here : 1;
  if (!layout.two_levels()) return layout;
  layout.node = std::move(node);
  layout.peers = split(comm, place, name);
  return layout;
}

}  // namespace cartan::comm
