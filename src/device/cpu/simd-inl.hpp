// Loads and stores of fp32, bf16 and fp16 as vectors of floats, with short ends, for the loops of the cpu
// device, and the choice among the three types. Included once per instruction set (Highway's foreach_target),
// hence the unusual guard.
#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

#include "cartan/core/bfloat16.hpp"
#include "cartan/core/error.hpp"
#include "cartan/core/float16.hpp"
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
/// body.operator()<T>() with the type T that holds numbers of `dtype`.
template <class Body>
HWY_INLINE auto with_type(DType dtype, const Body& body) {
  if (dtype == DType::f32) return body.template operator()<float>();
  if (dtype == DType::bf16) return body.template operator()<BFloat16>();
  CARTAN_DEBUG_ASSERT(dtype == DType::f16);
  return body.template operator()<Float16>();
}
template <class T>
HWY_INLINE const T* as(const void* data) {
  return static_cast<const T*>(data);
}
template <class T>
HWY_INLINE T* as(void* data) {
  return static_cast<T*>(data);
}

/// Room for the floats of one vector. (At least 16, or GCC warns about sizes that cannot occur with short
/// vectors.)
inline constexpr std::size_t kMaxLanes = HWY_MAX(HWY_MAX_BYTES / sizeof(float), 16);

HWY_INLINE Index lanes() { return static_cast<Index>(hn::Lanes(F())); }

HWY_INLINE VF load_full(const float* p) { return hn::LoadU(F(), p); }

HWY_INLINE VF load_full(const BFloat16* p) {
  const hn::Rebind<std::uint16_t, F> d16;
  const hn::Rebind<std::uint32_t, F> d32;
  return hn::BitCast(F(), hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, &p->bits))));
}

/// By the instruction where there is one (F16C, AVX-512); else as cartan/core/float16.hpp. (Highway's own
/// substitute truncates.)
HWY_INLINE VF load_full(const Float16* p) {
  const hn::Rebind<std::uint16_t, F> d16;
  const auto halves = hn::LoadU(d16, &p->bits);
#if HWY_TARGET <= HWY_AVX2
  return hn::PromoteTo(F(), hn::BitCast(hn::Rebind<hwy::float16_t, F>(), halves));
#else
  const hn::Rebind<std::uint32_t, F> d32;
  const hn::Rebind<std::int32_t, F> i32;
  const auto bits = hn::PromoteTo(d32, halves);
  const auto magnitude = hn::BitCast(i32, hn::And(bits, hn::Set(d32, 0x7fff)));
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(d32, 0x8000)));
  const auto bias = hn::Set(i32, 112 << 23);
  const auto normal = hn::Add(hn::ShiftLeft<13>(magnitude), bias);
  const auto subnormal = hn::BitCast(i32, hn::Mul(hn::ConvertTo(F(), magnitude), hn::Set(F(), 0x1p-24f)));
  const auto special = hn::IfThenElseZero(hn::Gt(magnitude, hn::Set(i32, 0x7bff)), bias);
  const auto quiet = hn::IfThenElseZero(hn::Gt(magnitude, hn::Set(i32, 0x7c00)), hn::Set(i32, 0x400000));
  const auto large = hn::Or(hn::Add(normal, special), quiet);
  const auto chosen = hn::IfThenElse(hn::Lt(magnitude, hn::Set(i32, 0x400)), subnormal, large);
  return hn::BitCast(F(), hn::Or(sign, hn::BitCast(d32, chosen)));
#endif
}

HWY_INLINE void store_full(VF v, float* p) { hn::StoreU(v, F(), p); }

/// Rounds to nearest, ties to even; NaN stays NaN.
HWY_INLINE void store_full(VF v, BFloat16* p) {
  const hn::Rebind<std::uint32_t, F> d32;
  const hn::Rebind<std::int32_t, F> i32;
  const hn::Rebind<std::uint16_t, F> d16;
  const auto bits = hn::BitCast(d32, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7fff)));
  const auto quiet = hn::Or(bits, hn::Set(d32, 0x400000));
  const auto chosen = hn::IfThenElse(hn::RebindMask(d32, hn::IsNaN(v)), quiet, rounded);
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(i32, hn::ShiftRight<16>(chosen))), d16, &p->bits);
}

/// Rounds to nearest, ties to even; what is too large becomes infinity, NaN stays NaN.
HWY_INLINE void store_full(VF v, Float16* p) {
  const hn::Rebind<std::uint16_t, F> d16;
#if HWY_TARGET <= HWY_AVX2
  hn::StoreU(hn::BitCast(d16, hn::DemoteTo(hn::Rebind<hwy::float16_t, F>(), v)), d16, &p->bits);
#else
  const hn::Rebind<std::int32_t, F> i32;
  const auto bits = hn::BitCast(i32, v);
  const auto magnitude = hn::And(bits, hn::Set(i32, 0x7fffffff));
  const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(i32, 0x8000));
  const auto subnormal = hn::Sub(hn::BitCast(i32, hn::Add(hn::BitCast(F(), magnitude), hn::Set(F(), 0.5f))),
                                 hn::Set(i32, 0x3f000000));
  const auto bounded = hn::Min(magnitude, hn::Set(i32, 0x47800000));
  const auto odd = hn::And(hn::ShiftRight<13>(bounded), hn::Set(i32, 1));
  const auto normal = hn::Sub(hn::ShiftRight<13>(hn::Add(bounded, hn::Add(odd, hn::Set(i32, 0xfff)))),
                              hn::Set(i32, 112 << 10));
  const auto quiet =
      hn::Or(hn::Set(i32, 0x7e00), hn::And(hn::ShiftRight<13>(magnitude), hn::Set(i32, 0x3ff)));
  const auto number = hn::IfThenElse(hn::Lt(magnitude, hn::Set(i32, 0x38800000)), subnormal, normal);
  const auto chosen = hn::IfThenElse(hn::Gt(magnitude, hn::Set(i32, 0x7f800000)), quiet, number);
  hn::StoreU(hn::DemoteTo(d16, hn::Or(sign, chosen)), d16, &p->bits);
#endif
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
