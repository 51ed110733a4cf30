// kernels/warp/memory.cuh on the host.
#pragma once

#include <cstring>

namespace cartan::kernels::warp {

template <class T>
T* dynamic_shared() {
  return static_cast<T*>(emu::dynamic_smem());
}

// One access for the checker, although the compiler would make several of it.
__attribute__((no_sanitize("thread"))) inline void load16(void* to, const void* from) {
  emu::check_access(from, 16, false);
  __builtin_memcpy(to, from, 16);
}

__attribute__((no_sanitize("thread"))) inline void store16(void* to, const void* from) {
  emu::check_access(to, 16, true);
  __builtin_memcpy(to, from, 16);
}

inline void cp_async16(void* shared, const void* global, const char* file = __builtin_FILE(),
                       int line = __builtin_LINE()) {
  emu::cp_async16(shared, global, file, line);
}
inline void cp_async_commit() { emu::cp_async_commit(); }
template <int kPending>
void cp_async_wait() {
  emu::cp_async_wait(kPending);
}

}  // namespace cartan::kernels::warp
