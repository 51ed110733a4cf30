// The access checker: finds accesses out of bounds, reads of memory that was never written, races, misaligned
// addresses and pointers to the host's memory, in kernels and in the operations of streams. Kernels are
// compiled with -fsanitize=thread; the functions that this makes the compiler call at each access are the
// checker's (sanitizer_callbacks.cpp), the sanitizer's library is never linked.
//
// A place in the source is reported once until the findings are taken.
#pragma once

#include <cstddef>

#include "settings.hpp"
#include "thread.hpp"

namespace emu {

enum class AccessKind : unsigned char { load, store, atomic, unaligned_load, unaligned_store };

inline bool writes(AccessKind kind) { return kind != AccessKind::load && kind != AccessKind::unaligned_load; }

/// Whether a kernel runs whose accesses are of interest.
inline bool is_watching() { return self != nullptr && (config.race || config.profile); }

/// The running thread of a kernel accesses memory. `code` is a return address, for findings.
void check_watched_access(const void* address, std::size_t bytes, AccessKind kind, const void* code);
inline void check_access(const void* address, std::size_t bytes, AccessKind kind, const void* code) {
  if (is_watching()) check_watched_access(address, bytes, kind, code);
}
/// One that access patterns have counted before.
void check_repeated_access(const void* address, std::size_t bytes, AccessKind kind, const void* code);
/// The running operation reads or writes bytes of device or pinned memory.
void touch(const void* data, std::size_t bytes, bool writes);

/// A block begins: its shared memory was never written.
void forget_shared_memory();
/// Places that were reported may be reported again.
void forget_reported();

}  // namespace emu
