// MPI as the store uses it: the communicator behind a group, and errors as exceptions.
#pragma once

#include <mpi.h>

#include <string>
#include <string_view>

#include "cartan/comm/communicator.hpp"

namespace cartan::store {

MPI_Comm mpi_of(const comm::Communicator& comm);
/// MPI's sentence for an error code; for the usual failures of files the system's own ("No space left on
/// device").
std::string mpi_reason(int code);
/// Throws EnvironmentError "MPI could not WHAT: reason".
void check_mpi(int code, std::string_view what);

}  // namespace cartan::store
