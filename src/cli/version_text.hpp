#pragma once

#include <string>

namespace cartan::cli {

/// What `cartan --version` prints: this build and the libraries it runs with. Starts no MPI.
std::string version_text();

}  // namespace cartan::cli
