// SwiGLU and rotary position embedding.
// Sources: Shazeer 2020, arXiv:2002.05202; Su et al. 2021, arXiv:2104.09864.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/kernels_activation.cpp"
#include <hwy/foreach_target.h>  // before highway.h
#include <hwy/highway.h>

#include "device/cpu/exp-inl.hpp"
#include "device/cpu/kernels.hpp"
#include "device/cpu/simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace cartan::device::cpu::HWY_NAMESPACE {
namespace {

/// 1 / (1 + exp(-x)); exact 0 is never reached from exp(88), but x * 6e-39 is as good as 0.
HWY_INLINE VF sigmoid(VF x) {
  const VF one = hn::Set(F(), 1.0f);
  return hn::Div(one, hn::Add(one, exp_of(hn::Neg(x))));
}

template <class T>
void swiglu_typed(const T* gate, const T* up, T* y, Index cols) {
  for (Index i = 0; i < cols; i += lanes()) {
    const VF g = load(gate + i, cols - i);
    store(hn::Mul(hn::Mul(g, sigmoid(g)), load(up + i, cols - i)), y + i, cols - i);
  }
}

template <class T>
void swiglu_backward_typed(const T* gate, const T* up, const T* dy, T* dgate, T* dup, T* y, Index cols) {
  const VF one = hn::Set(F(), 1.0f);
  for (Index i = 0; i < cols; i += lanes()) {
    const Index left = cols - i;
    const VF g = load(gate + i, left), u = load(up + i, left), d = load(dy + i, left);
    const VF s = sigmoid(g);
    const VF silu = hn::Mul(g, s);
    // d silu / d gate = s + gate * s * (1 - s)
    const VF slope = hn::Add(s, hn::Mul(silu, hn::Sub(one, s)));
    store(hn::Mul(hn::Mul(d, u), slope), dgate + i, left);
    store(hn::Mul(d, silu), dup + i, left);
    if (y != nullptr) store(hn::Mul(silu, u), y + i, left);
  }
}

template <class T>
void rope_typed(T* x, const float* cosines, const float* sines, Index half, bool inverse) {
  for (Index i = 0; i < half; i += lanes()) {
    const Index left = half - i;
    const VF a = load(x + i, left), b = load(x + half + i, left);
    const VF c = load(cosines + i, left);
    VF s = load(sines + i, left);
    if (inverse) s = hn::Neg(s);
    store(hn::Sub(hn::Mul(a, c), hn::Mul(b, s)), x + i, left);
    store(hn::Add(hn::Mul(b, c), hn::Mul(a, s)), x + half + i, left);
  }
}

void swiglu_any(const void* gate, const void* up, void* y, DType dtype, Index cols) {
  with_type(dtype, [&]<class T>() HWY_ATTR { swiglu_typed(as<T>(gate), as<T>(up), as<T>(y), cols); });
}

void swiglu_backward_any(const void* gate, const void* up, const void* dy, void* dgate, void* dup, void* y,
                         DType dtype, Index cols) {
  with_type(dtype, [&]<class T>() HWY_ATTR {
    swiglu_backward_typed(as<T>(gate), as<T>(up), as<T>(dy), as<T>(dgate), as<T>(dup), as<T>(y), cols);
  });
}

void rope_any(void* x, DType dtype, const float* cosines, const float* sines, Index half, bool inverse) {
  with_type(dtype, [&]<class T>() HWY_ATTR { rope_typed(as<T>(x), cosines, sines, half, inverse); });
}

}  // namespace
}  // namespace cartan::device::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cartan::device::cpu {

HWY_EXPORT(swiglu_any);
HWY_EXPORT(swiglu_backward_any);
HWY_EXPORT(rope_any);

void swiglu_row(const void* gate, const void* up, void* y, DType dtype, Index cols) {
  HWY_DYNAMIC_DISPATCH(swiglu_any)(gate, up, y, dtype, cols);
}

void swiglu_row_backward(const void* gate, const void* up, const void* dy, void* dgate, void* dup, void* y,
                         DType dtype, Index cols) {
  HWY_DYNAMIC_DISPATCH(swiglu_backward_any)(gate, up, dy, dgate, dup, y, dtype, cols);
}

void rope_head(void* x, DType dtype, const float* cosines, const float* sines, Index half, bool inverse) {
  HWY_DYNAMIC_DISPATCH(rope_any)(x, dtype, cosines, sines, half, inverse);
}

}  // namespace cartan::device::cpu
#endif
