// Every MPI call goes through here: a return code becomes an error that names communicator, verb and peer.
#pragma once

#include <mpi.h>

#include <string>
#include <string_view>

namespace cartan::comm {

inline constexpr int kNoPeer = -1;

/// Returns if `code` is MPI_SUCCESS. Throws PeerError where MPI says that a process failed, InternalError
/// where ranks disagree on a message's size, else EnvironmentError. `where` is a communicator's name, `verb`
/// what was asked of it.
void check(int code, std::string_view where, std::string_view verb, int peer = kNoPeer);

}  // namespace cartan::comm
