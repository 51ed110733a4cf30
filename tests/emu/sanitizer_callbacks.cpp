// The functions that -fsanitize=thread makes the compiler call at each access of a kernel. They tell the
// access checker; in host code of the same files nothing happens.
#include "checker.hpp"

namespace {

using emu::AccessKind;

inline void note(const void* address, std::size_t bytes, AccessKind kind, const void* code) {
  emu::check_access(address, bytes, kind, code);
}

}  // namespace

#define EMU_CALLBACKS(bytes)                                                        \
  void __tsan_read##bytes(void* address) {                                          \
    note(address, bytes, AccessKind::load, __builtin_return_address(0));            \
  }                                                                                 \
  void __tsan_write##bytes(void* address) {                                         \
    note(address, bytes, AccessKind::store, __builtin_return_address(0));           \
  }                                                                                 \
  void __tsan_unaligned_read##bytes(void* address) {                                \
    note(address, bytes, AccessKind::unaligned_load, __builtin_return_address(0));  \
  }                                                                                 \
  void __tsan_unaligned_write##bytes(void* address) {                               \
    note(address, bytes, AccessKind::unaligned_store, __builtin_return_address(0)); \
  }

extern "C" {

EMU_CALLBACKS(1)
EMU_CALLBACKS(2)
EMU_CALLBACKS(4)
EMU_CALLBACKS(8)
EMU_CALLBACKS(16)

void __tsan_read_range(void* address, unsigned long bytes) {
  note(address, bytes, AccessKind::unaligned_load, __builtin_return_address(0));
}
void __tsan_write_range(void* address, unsigned long bytes) {
  note(address, bytes, AccessKind::unaligned_store, __builtin_return_address(0));
}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_init() {}
}
