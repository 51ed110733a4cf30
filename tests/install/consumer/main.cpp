#include <cstdio>

#include "cartan/core/text.hpp"
#include "cartan/core/version.hpp"

int main() {
  std::printf("built on cartan %s\n", cartan::version().c_str());
  return cartan::trim("  room ") == "room" ? 0 : 1;
}
