// What the checker remembers of memory: a cell for each two bytes. The cells lie in reserved addresses that
// cost nothing until they are touched; allocating memory touches none of them, and freeing it gives them
// back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "races.hpp"

namespace emu {

/// An allocation that operations may use: from the call that made it until it is freed in the order of its
/// stream.
struct Allocation {
  const unsigned char *begin = nullptr, *end = nullptr;
  bool is_pinned = false;

  bool contains(const void* address, std::size_t bytes) const {
    const auto* const first = static_cast<const unsigned char*>(address);
    return first >= begin && first < end && bytes <= static_cast<std::size_t>(end - first);
  }
};

void note_allocation(const void* data, std::size_t bytes, bool is_pinned);
/// Forgets what happened there too.
void forget_allocation(const void* data);
/// The one that holds all of these bytes, or null.
const Allocation* allocation_of(const void* address, std::size_t bytes);

/// The cell of an address in device or pinned memory, and of the bytes behind it.
Cell* cell_of(const void* heap_address);

/// Shared memory of a block: dynamic shared memory, then the variables of the OS thread that executes it.
Cell& dynamic_shared_cell(std::size_t offset);
Cell& static_shared_cell(std::size_t offset);

}  // namespace emu
