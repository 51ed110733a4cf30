// AdamW in one pass. Source: Loshchilov and Hutter 2019, arXiv:1711.05101.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/kernels_adamw.cpp"
#include <hwy/foreach_target.h>  // before highway.h
#include <hwy/highway.h>

#include <cmath>

#include "device/cpu/kernels.hpp"
#include "device/cpu/simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace cartan::device::cpu::HWY_NAMESPACE {
namespace {

/// One division and one root a number, which keeps the loop at memory speed: lr * (m / c1) / (sqrt(v / c2) +
/// eps) is computed as (lr / c1) * m / (sqrt(v) / sqrt(c2) + eps) with the scalar quotients taken in fp64. No
/// fused multiply-adds, so every instruction set gives the same bits.
template <class T>
void update(float* master, const float* gradient, float* exp_avg, float* exp_avg_sq, T* compute, Index count,
            const AdamWStep& step) {
  const F d;
  const VF decay = hn::Set(d, static_cast<float>(1.0 - static_cast<double>(step.lr) * step.weight_decay));
  const VF beta1 = hn::Set(d, step.beta1), beta2 = hn::Set(d, step.beta2);
  const VF rest1 = hn::Set(d, static_cast<float>(1.0 - static_cast<double>(step.beta1)));
  const VF rest2 = hn::Set(d, static_cast<float>(1.0 - static_cast<double>(step.beta2)));
  const VF rate = hn::Set(d, static_cast<float>(static_cast<double>(step.lr) / step.bias_correction1));
  const VF root = hn::Set(d, static_cast<float>(1.0 / std::sqrt(static_cast<double>(step.bias_correction2))));
  const VF eps = hn::Set(d, step.eps), scale = hn::Set(d, step.gradient_scale);
  for (Index i = 0; i < count; i += lanes()) {
    const Index left = count - i;
    const VF g = hn::Mul(load(gradient + i, left), scale);
    const VF m = hn::Add(hn::Mul(beta1, load(exp_avg + i, left)), hn::Mul(rest1, g));
    const VF v = hn::Add(hn::Mul(beta2, load(exp_avg_sq + i, left)), hn::Mul(rest2, hn::Mul(g, g)));
    const VF shrunk = hn::Mul(load(master + i, left), decay);
    const VF change = hn::Div(hn::Mul(rate, m), hn::Add(hn::Mul(hn::Sqrt(v), root), eps));
    const VF p = hn::Sub(shrunk, change);
    store(m, exp_avg + i, left);
    store(v, exp_avg_sq + i, left);
    store(p, master + i, left);
    if (compute != nullptr) store(p, compute + i, left);
  }
}

void adamw_any(float* master, const float* gradient, float* exp_avg, float* exp_avg_sq, void* compute,
               DType compute_type, Index count, const AdamWStep& step) {
  with_type(compute_type, [&]<class T>() HWY_ATTR {
    update(master, gradient, exp_avg, exp_avg_sq, as<T>(compute), count, step);
  });
}

}  // namespace
}  // namespace cartan::device::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cartan::device::cpu {

HWY_EXPORT(adamw_any);

void adamw_block(float* master, const float* gradient, float* exp_avg, float* exp_avg_sq, void* compute,
                 DType compute_type, Index count, const AdamWStep& step) {
  HWY_DYNAMIC_DISPATCH(adamw_any)
  (master, gradient, exp_avg, exp_avg_sq, compute, compute_type, count, step);
}

}  // namespace cartan::device::cpu
#endif
