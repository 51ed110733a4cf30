// Where the running program lies in memory: its code and constants, and the variables of this OS thread.
#pragma once

#include <cstddef>

namespace emu {

struct AddressRange {
  const unsigned char *begin = nullptr, *end = nullptr;

  bool contains(const void* address) const { return address >= begin && address < end; }
  std::size_t size() const { return static_cast<std::size_t>(end - begin); }
};

struct ProgramImage {
  const unsigned char* base = nullptr;  ///< addresses in the executable's file count from here
  AddressRange image;
};
const ProgramImage& program_image();

/// thread_local variables of the executable for the calling thread: static shared memory is among them.
AddressRange thread_variables();

}  // namespace emu
