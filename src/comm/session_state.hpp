// What a session knows, for the files that implement it.
#pragma once

#include <mpi.h>

#include <string>

#include "cartan/comm/session.hpp"
#include "comm/mpi/mpi_group.hpp"

namespace cartan::comm {

struct Session::State {
  bool made_mpi = false;
  int thread_level = MPI_THREAD_SINGLE;
  int rank = 0, world_size = 1, node_rank = 0, ranks_on_node = 1, threads_of_rank = 1;
  std::string host;
  MpiOptions options;
};

}  // namespace cartan::comm
