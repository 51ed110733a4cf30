// kernels/warp/memory.cuh on the host.
#pragma once

namespace cartan::kernels::warp {

template <class T>
T* dynamic_shared() {
  return static_cast<T*>(emu::dynamic_shared());
}

// Always inlined: the checker names the kernel's line that calls the emulator.
__forceinline__ void load16(void* to, const void* from) { emu::load16(to, from); }
__forceinline__ void store16(void* to, const void* from) { emu::store16(to, from); }

__forceinline__ void cp_async16(void* shared, const void* global) { emu::copy_async16(shared, global); }
__forceinline__ void cp_async_commit() { emu::copy_async_commit(); }
template <int kPending>
__forceinline__ void cp_async_wait() {
  emu::copy_async_wait(kPending);
}

}  // namespace cartan::kernels::warp
