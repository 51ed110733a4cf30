// Translates MPI's error codes.
#include "comm/mpi/check.hpp"

#include "cartan/core/error.hpp"

namespace cartan::comm {
namespace {

std::string text_of(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) return fmt::format("code {}", code);
  return std::string(text, static_cast<std::size_t>(length));
}

}  // namespace

void check(int code, std::string_view where, std::string_view verb, int peer) {
  if (code == MPI_SUCCESS) return;
  int error_class = MPI_ERR_UNKNOWN;
  MPI_Error_class(code, &error_class);
  const std::string with_peer = peer == kNoPeer ? "" : fmt::format(" with rank {}", peer);
  const std::string message =
      fmt::format("{} on {}{} failed: MPI says \"{}\"", verb, where, with_peer, text_of(code));
  if (error_class == MPI_ERR_TRUNCATE) {
    throw InternalError("{}; the ranks disagree on the size of the message", message);
  }
#ifdef MPIX_ERR_PROC_FAILED
  if (error_class == MPIX_ERR_PROC_FAILED) throw PeerError(message);
#endif
  throw EnvironmentError(message);
}

}  // namespace cartan::comm
