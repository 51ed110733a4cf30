#include "mpi_calls.hpp"

#include <array>
#include <cerrno>

#include "cartan/comm/session.hpp"
#include "cartan/core/error.hpp"

namespace cartan::store {

MPI_Comm mpi_of(const comm::Communicator& comm) {
  return reinterpret_cast<MPI_Comm>(comm::native_handle(comm));
}

std::string mpi_reason(int code) {
  int error_class = MPI_ERR_OTHER;
  MPI_Error_class(code, &error_class);
  switch (error_class) {
    case MPI_ERR_NO_SPACE:
      return errno_text(ENOSPC);
    case MPI_ERR_QUOTA:
      return errno_text(EDQUOT);
    case MPI_ERR_ACCESS:
      return errno_text(EACCES);
    case MPI_ERR_READ_ONLY:
      return errno_text(EROFS);
    default:
      break;
  }
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return {text.data(), static_cast<std::size_t>(length)};
}

void check_mpi(int code, std::string_view what) {
  if (code != MPI_SUCCESS) throw EnvironmentError("MPI could not {}: {}", what, mpi_reason(code));
}

}  // namespace cartan::store
