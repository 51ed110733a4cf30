// Which build this is.
#pragma once

#include <string>

namespace cartan {

/// "0.1.0 (git 1a2b3c4)"; the git part is missing in a source archive.
std::string version();

}  // namespace cartan
