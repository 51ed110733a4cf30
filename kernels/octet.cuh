// Eight neighbouring elements as floats: what a thread of the element-wise kernels works on. Where operands
// are packed (is_packed) and the eight are there, they move in 16-byte accesses, else one by one; either way
// the arithmetic is the same.
#pragma once

#include "base.cuh"

namespace cartan::kernels {

inline constexpr int kOctet = 8;

struct Octet {
  float at[kOctet];
};

/// Elements from `left` on are 0.
template <class T>
__device__ __forceinline__ Octet load_octet(const T* from, Index left, bool packed) {
  Octet octet;
  if (packed && left >= kOctet) {
#pragma unroll
    for (int i = 0; i < kOctet; i += kPack<T>) {
      const Pack<T> pack = load_pack(from + i);
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) octet.at[i + j] = to_float(pack.at[j]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kOctet; ++i) octet.at[i] = i < left ? to_float(from[i]) : 0.0f;
  }
  return octet;
}

/// Writes the first `left` elements.
template <class T>
__device__ __forceinline__ void store_octet(T* to, const Octet& octet, Index left, bool packed) {
  if (packed && left >= kOctet) {
#pragma unroll
    for (int i = 0; i < kOctet; i += kPack<T>) {
      Pack<T> pack;
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) pack.at[j] = from_float<T>(octet.at[i + j]);
      store_pack(to + i, pack);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kOctet; ++i)
      if (i < left) to[i] = from_float<T>(octet.at[i]);
  }
}

/// Whether a vector can be moved in packs.
template <class T>
bool is_packed(const T* data) {
  return is_packed(data, 0);
}

inline Index octets(Index elements) { return (elements + kOctet - 1) / kOctet; }

}  // namespace cartan::kernels
