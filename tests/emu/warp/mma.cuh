// kernels/warp/mma.cuh on the host. Products of 16-bit elements are exact in fp32; tensor cores add them in
// an order and with a rounding of their own, so bits differ from a GPU's.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstring>

namespace cartan::kernels::warp {

/// The lower or upper element of a register.
template <class T>
float element_of(unsigned packed, int number) {
  const auto bits = static_cast<unsigned short>(packed >> (16 * number));
  T value;
  std::memcpy(static_cast<void*>(&value), &bits, sizeof bits);
  return static_cast<float>(value);
}

template <class T>
void mma_16x8x16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                 const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  const auto lower = [](unsigned packed) { return element_of<T>(packed, 0); };
  const auto upper = [](unsigned packed) { return element_of<T>(packed, 1); };
  const float left[8] = {lower(a[0]), upper(a[0]), lower(a[1]), upper(a[1]),
                         lower(a[2]), upper(a[2]), lower(a[3]), upper(a[3])};
  const float right[4] = {lower(b[0]), upper(b[0]), lower(b[1]), upper(b[1])};
  emu::multiply_fragments(d, left, right, {file, line});
}

__forceinline__ void ldmatrix(unsigned (&r)[4], const void* shared_row, const char* file = __builtin_FILE(),
                              int line = __builtin_LINE()) {
  emu::load_matrices(r, shared_row, false, {file, line});
}
__forceinline__ void ldmatrix_transposed(unsigned (&r)[4], const void* shared_row,
                                         const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  emu::load_matrices(r, shared_row, true, {file, line});
}

}  // namespace cartan::kernels::warp
