// The exponential as the activation and the loss need it: NaN stays NaN. (Highway's Exp answers 0 for NaN,
// which would hide a diverged run.)
#include <hwy/contrib/math/math-inl.h>

#include "device/cpu/simd-inl.hpp"

#if defined(CARTAN_DEVICE_CPU_EXP_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef CARTAN_DEVICE_CPU_EXP_INL_HPP
#undef CARTAN_DEVICE_CPU_EXP_INL_HPP
#else
#define CARTAN_DEVICE_CPU_EXP_INL_HPP
#endif

HWY_BEFORE_NAMESPACE();
namespace cartan::device::cpu::HWY_NAMESPACE {

/// exp(x) for x up to 88; larger x answer exp(88). exp(-infinity) is 0.
HWY_INLINE VF exp_of(VF x) {
  const VF bounded = hn::Min(hn::Max(x, hn::Set(F(), -110.0f)), hn::Set(F(), 88.0f));
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(F(), bounded));
}

}  // namespace cartan::device::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
