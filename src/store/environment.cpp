// What must be in the environment before MPI starts.
#include <cstdlib>

#include "cartan/store/checkpoint.hpp"

namespace cartan::store {

void prepare_environment() {
  // A choice of the user's (OMPI_MCA_io=...) is about the same thing and wins. Priorities instead of a list
  // of components: ROMIO's name carries its version, and a build without ROMIO still has Open MPI's own.
  if (std::getenv("OMPI_MCA_io") == nullptr) setenv("OMPI_MCA_io_ompio_priority", "0", /*overwrite=*/0);
}

}  // namespace cartan::store
