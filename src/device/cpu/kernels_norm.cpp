// RMS normalization of one row. Source: Zhang and Sennrich 2019, arXiv:1910.07467.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/kernels_norm.cpp"
#include <hwy/foreach_target.h>  // before highway.h
#include <hwy/highway.h>

#include <cmath>

#include "device/cpu/kernels.hpp"
#include "device/cpu/simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace cartan::device::cpu::HWY_NAMESPACE {
namespace {

template <class T>
float row_forward(const T* x, const T* weight, float eps, T* y, Index cols) {
  // Two sums, so that one addition need not wait for the one before it.
  VF even = hn::Zero(F()), odd = hn::Zero(F());
  for (Index i = 0; i < cols; i += 2 * lanes()) {
    const VF a = load(x + i, cols - i);
    even = hn::Add(even, hn::Mul(a, a));
    if (i + lanes() < cols) {
      const VF b = load(x + i + lanes(), cols - i - lanes());
      odd = hn::Add(odd, hn::Mul(b, b));
    }
  }
  const float mean = sum_lanes(hn::Add(even, odd)) / static_cast<float>(cols);
  const float inv_rms = 1.0f / std::sqrt(mean + eps);
  const VF scale = hn::Set(F(), inv_rms);
  for (Index i = 0; i < cols; i += lanes()) {
    store(hn::Mul(hn::Mul(load(x + i, cols - i), scale), load(weight + i, cols - i)), y + i, cols - i);
  }
  return inv_rms;
}

template <class T>
void row_backward(const T* x, const T* weight, float inv_rms, const T* dy, T* dx, bool accumulate,
                  Index cols) {
  VF even = hn::Zero(F()), odd = hn::Zero(F());
  for (Index i = 0; i < cols; i += 2 * lanes()) {
    const Index left = cols - i, next = i + lanes();
    even = hn::Add(even, hn::Mul(hn::Mul(load(dy + i, left), load(weight + i, left)), load(x + i, left)));
    if (next < cols) {
      const Index rest = cols - next;
      odd = hn::Add(odd,
                    hn::Mul(hn::Mul(load(dy + next, rest), load(weight + next, rest)), load(x + next, rest)));
    }
  }
  const float mean = sum_lanes(hn::Add(even, odd)) / static_cast<float>(cols);
  const VF scale = hn::Set(F(), inv_rms);
  const VF pull = hn::Set(F(), mean * inv_rms * inv_rms);
  for (Index i = 0; i < cols; i += lanes()) {
    const Index left = cols - i;
    const VF straight = hn::Mul(load(dy + i, left), load(weight + i, left));
    VF value = hn::Mul(scale, hn::Sub(straight, hn::Mul(load(x + i, left), pull)));
    if (accumulate) value = hn::Add(load(dx + i, left), value);
    store(value, dx + i, left);
  }
}

template <class T>
void weight_row(float* sum, const T* x, const T* dy, float inv_rms, Index cols) {
  const VF scale = hn::Set(F(), inv_rms);
  for (Index i = 0; i < cols; i += lanes()) {
    const Index left = cols - i;
    const VF term = hn::Mul(hn::Mul(load(dy + i, left), load(x + i, left)), scale);
    store(hn::Add(load(sum + i, left), term), sum + i, left);
  }
}

float forward_any(const void* x, const void* weight, float eps, void* y, DType dtype, Index cols) {
  return with_type(
      dtype, [&]<class T>() HWY_ATTR { return row_forward(as<T>(x), as<T>(weight), eps, as<T>(y), cols); });
}

void backward_any(const void* x, const void* weight, float inv_rms, const void* dy, void* dx, bool accumulate,
                  DType dtype, Index cols) {
  with_type(dtype, [&]<class T>() HWY_ATTR {
    row_backward(as<T>(x), as<T>(weight), inv_rms, as<T>(dy), as<T>(dx), accumulate, cols);
  });
}

void weight_any(float* sum, const void* x, const void* dy, float inv_rms, DType dtype, Index cols) {
  with_type(dtype, [&]<class T>() HWY_ATTR { weight_row(sum, as<T>(x), as<T>(dy), inv_rms, cols); });
}

}  // namespace
}  // namespace cartan::device::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cartan::device::cpu {

HWY_EXPORT(forward_any);
HWY_EXPORT(backward_any);
HWY_EXPORT(weight_any);

float rmsnorm_row(const void* x, const void* weight, float eps, void* y, DType dtype, Index cols) {
  return HWY_DYNAMIC_DISPATCH(forward_any)(x, weight, eps, y, dtype, cols);
}

void rmsnorm_row_backward(const void* x, const void* weight, float inv_rms, const void* dy, void* dx,
                          bool accumulate, DType dtype, Index cols) {
  HWY_DYNAMIC_DISPATCH(backward_any)(x, weight, inv_rms, dy, dx, accumulate, dtype, cols);
}

void add_norm_weight_row(float* sum, const void* x, const void* dy, float inv_rms, DType dtype, Index cols) {
  HWY_DYNAMIC_DISPATCH(weight_any)(sum, x, dy, inv_rms, dtype, cols);
}

}  // namespace cartan::device::cpu
#endif
