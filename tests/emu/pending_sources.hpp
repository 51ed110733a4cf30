// Pinned memory that pending copies will read: the host must leave it alone until they ran. Operations of the
// device may write it, in the order of streams, which the access checker looks at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>

namespace emu {

struct PendingSource {
  const unsigned char* data;
  std::size_t bytes;
  std::uint64_t hash;
  bool is_rewritten = false;  ///< by an operation of the device
};
using PendingCopy = std::list<PendingSource>::iterator;

PendingCopy add_pending_source(const void* data, std::size_t bytes);
/// Reports a change by the host. The copy runs now.
void end_pending_source(PendingCopy copy);
bool is_pending_source(const void* data, std::size_t bytes);
/// An operation of the device writes these bytes.
void note_rewritten(const void* data, std::size_t bytes);

}  // namespace emu
