#include "cartan/core/version.hpp"

#include <string_view>

namespace cartan {

std::string version() {
  constexpr std::string_view commit = CARTAN_GIT_COMMIT;
  std::string text = CARTAN_VERSION;
  if (!commit.empty()) text += " (git " + std::string(commit) + ")";
  return text;
}

}  // namespace cartan
