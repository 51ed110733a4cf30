// kernels/warp/mma.cuh on the host: the documented layout of fragments, in C++.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstring>
#include <type_traits>

namespace cartan::kernels::warp {

template <class T>
float half_of(unsigned packed, int upper) {
  const auto bits = static_cast<unsigned short>(upper != 0 ? packed >> 16 : packed);
  T value;
  std::memcpy(static_cast<void*>(&value), &bits, sizeof bits);
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __bfloat162float(value);
  } else {
    return __half2float(value);
  }
}

template <class T>
void mma_16x8x16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                 const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  struct Operands {
    unsigned a[4], b[2];
  };
  const Operands mine{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  const emu::Exchange all = emu::exchange(0xffffffffu, emu::Sync::mma, &mine, sizeof mine, {file, line});
  const auto of_lane = [&](int lane) { return reinterpret_cast<const Operands*>(all.data[lane]); };
  const int g = static_cast<int>(emu::self->lane) / 4, t = static_cast<int>(emu::self->lane) % 4;
  for (int i = 0; i < 4; ++i) {
    const int row = g + i / 2 * 8, col = t * 2 + i % 2;
    float sum = 0;
    for (int k = 0; k < 16; ++k) {
      const unsigned left = of_lane(row % 8 * 4 + k % 8 / 2)->a[(row >= 8 ? 1 : 0) + (k >= 8 ? 2 : 0)];
      const unsigned right = of_lane(col * 4 + k % 8 / 2)->b[k >= 8 ? 1 : 0];
      sum += half_of<T>(left, k % 2) * half_of<T>(right, k % 2);
    }
    d[i] += sum;
  }
  emu::exchange_done(all);
}

/// `transposed`: register i holds rows 2t, 2t+1 of column g instead of columns 2t, 2t+1 of row g.
inline void load_matrices(unsigned (&r)[4], const void* shared_row, bool transposed, const char* file,
                          int line) {
  struct Row {
    unsigned short at[8];
  };
  Row mine;
  emu::check_access(shared_row, sizeof mine, false);
  __builtin_memcpy(&mine, shared_row, sizeof mine);
  const emu::Exchange all = emu::exchange(0xffffffffu, emu::Sync::ldmatrix, &mine, sizeof mine, {file, line});
  const auto row = [&](int matrix, int number) {
    return reinterpret_cast<const Row*>(all.data[matrix * 8 + number]);
  };
  const int g = static_cast<int>(emu::self->lane) / 4, t = static_cast<int>(emu::self->lane) % 4;
  for (int i = 0; i < 4; ++i) {
    const unsigned first = transposed ? row(i, 2 * t)->at[g] : row(i, g)->at[2 * t];
    const unsigned second = transposed ? row(i, 2 * t + 1)->at[g] : row(i, g)->at[2 * t + 1];
    r[i] = first | second << 16;
  }
  emu::exchange_done(all);
}

inline void ldmatrix(unsigned (&r)[4], const void* shared_row, const char* file = __builtin_FILE(),
                     int line = __builtin_LINE()) {
  load_matrices(r, shared_row, false, file, line);
}
inline void ldmatrix_transposed(unsigned (&r)[4], const void* shared_row, const char* file = __builtin_FILE(),
                                int line = __builtin_LINE()) {
  load_matrices(r, shared_row, true, file, line);
}

}  // namespace cartan::kernels::warp
