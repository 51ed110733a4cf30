// Owners of MPI's handles. Freeing a communicator or a window is collective: while an exception unwinds this
// rank the others do something else, so nothing is freed then; the job is about to be aborted.
#pragma once

#include <mpi.h>

#include <exception>

#include "cartan/core/handle.hpp"

namespace cartan::comm {

inline bool may_free_collectively() noexcept {
  int finalized = 0;
  MPI_Finalized(&finalized);
  return finalized == 0 && std::uncaught_exceptions() == 0;
}

struct CommTraits {
  using Raw = MPI_Comm;
  static Raw null() { return MPI_COMM_NULL; }
  static void destroy(Raw raw) noexcept {
    if (may_free_collectively()) MPI_Comm_free(&raw);
  }
};
using CommHandle = Handle<CommTraits>;

struct WinTraits {
  using Raw = MPI_Win;
  static Raw null() { return MPI_WIN_NULL; }
  static void destroy(Raw raw) noexcept {
    if (may_free_collectively()) MPI_Win_free(&raw);
  }
};
using WinHandle = Handle<WinTraits>;

struct InfoTraits {
  using Raw = MPI_Info;
  static Raw null() { return MPI_INFO_NULL; }
  static void destroy(Raw raw) noexcept { MPI_Info_free(&raw); }
};
using InfoHandle = Handle<InfoTraits>;

}  // namespace cartan::comm
