// Loads and stores of fp32 and bf16 as vectors of floats, with short ends, for the kernels_*.cpp. Included
// once per instruction set (Highway's foreach_target), hence the unusual guard.
#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

#include "cartan/core/types.hpp"

#if defined(CARTAN_DEVICE_CPU_SIMD_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef CARTAN_DEVICE_CPU_SIMD_INL_HPP
#undef CARTAN_DEVICE_CPU_SIMD_INL_HPP
#else
#define CARTAN_DEVICE_CPU_SIMD_INL_HPP
#endif

HWY_BEFORE_NAMESPACE();
namespace cartan::device::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F = hn::ScalableTag<float>;
using VF = hn::Vec<F>;
/// Bits of a bf16 number.
using B16 = std::uint16_t;

/// Room for the floats of one vector. (At least 16, or GCC warns about sizes that cannot occur with short
/// vectors.)
inline constexpr std::size_t kMaxLanes = HWY_MAX(HWY_MAX_BYTES / sizeof(float), 16);

HWY_INLINE Index lanes() { return static_cast<Index>(hn::Lanes(F())); }

HWY_INLINE VF load_full(const float* p) { return hn::LoadU(F(), p); }

HWY_INLINE VF load_full(const B16* p) {
  const hn::Rebind<B16, F> d16;
  const hn::Rebind<std::uint32_t, F> d32;
  return hn::BitCast(F(), hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, p))));
}

HWY_INLINE void store_full(VF v, float* p) { hn::StoreU(v, F(), p); }

/// Rounds to nearest, ties to even; NaN stays NaN.
HWY_INLINE void store_full(VF v, B16* p) {
  const hn::Rebind<std::uint32_t, F> d32;
  const hn::Rebind<std::int32_t, F> i32;
  const hn::Rebind<B16, F> d16;
  const auto bits = hn::BitCast(d32, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7fff)));
  const auto quiet = hn::Or(bits, hn::Set(d32, 0x400000));
  const auto chosen = hn::IfThenElse(hn::RebindMask(d32, hn::IsNaN(v)), quiet, rounded);
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(i32, hn::ShiftRight<16>(chosen))), d16, p);
}

/// The next `left` elements, at most a vector; missing lanes are 0.
template <class T>
HWY_INLINE VF load(const T* p, Index left) {
  if (left >= lanes()) return load_full(p);
  HWY_ALIGN T buffer[kMaxLanes] = {};
  std::memcpy(buffer, p, static_cast<std::size_t>(left) * sizeof(T));
  return load_full(buffer);
}

template <class T>
HWY_INLINE void store(VF v, T* p, Index left) {
  if (left >= lanes()) return store_full(v, p);
  HWY_ALIGN T buffer[kMaxLanes];
  store_full(v, buffer);
  std::memcpy(p, buffer, static_cast<std::size_t>(left) * sizeof(T));
}

/// Sum of the lanes, left to right.
HWY_INLINE float sum_lanes(VF v) {
  HWY_ALIGN float buffer[kMaxLanes];
  hn::Store(v, F(), buffer);
  float sum = buffer[0];
  for (Index i = 1; i < lanes(); ++i) sum += buffer[i];
  return sum;
}

}  // namespace cartan::device::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
