// Which NCCL this program has; every build can tell.
#pragma once

#include <string>

namespace cartan::comm {

/// Of the library that was loaded, "2.28.3"; empty in a build without it. Needs no GPU.
std::string nccl_version();

}  // namespace cartan::comm
