// The session of a test program whose main has started MPI (mpi_main.cpp).
#pragma once

#include "cartan/comm/mesh_groups.hpp"

namespace cartan::testing {

inline comm::Session& session() {
  static int argc = 0;
  static char** argv = nullptr;
  static comm::Session instance(argc, argv);
  return instance;
}

}  // namespace cartan::testing
