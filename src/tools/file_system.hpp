// The file system of the run directory, as all ranks see it.
#pragma once

#include <filesystem>

#include "cartan/comm/communicator.hpp"
#include "cartan/tools/doctor.hpp"

namespace cartan::tools {

/// Writes a file there, or in the nearest folder above that is there, looks at it from every rank, and
/// removes it. Collective.
Finding about_run_dir(comm::Communicator& world, const std::filesystem::path& run_dir);

}  // namespace cartan::tools
