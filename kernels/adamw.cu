// AdamW in one pass over a range of parameters: four a thread (16 bytes of each fp32 operand: threads side by
// side share no sector), all arithmetic as on the cpu device (no fused multiply-adds, exact root and
// division), hence the same bits.
//
// Moved for each parameter: 16 bytes read, 12 written and the copy (2 or 4): 28 to 32. About 14 FLOPs, so
// memory decides: 90 % of its peak is expected for units of 10 million parameters and more.
// Source: Loshchilov and Hutter 2019, arXiv:1711.05101.
#include "adamw.hpp"

#include <cmath>

#include "rows.cuh"

namespace cartan::kernels {
namespace {

/// lr * (m / c1) / (sqrt(v / c2) + eps) is computed as rate * m / (sqrt(v) * root + eps).
struct Coefficients {
  float decay, beta1, rest1, beta2, rest2, rate, root, eps, gradient_scale;
};

Coefficients coefficients_of(const device::AdamWStep& step) {
  const auto wide = [](float value) { return static_cast<double>(value); };
  Coefficients c{};
  c.decay = static_cast<float>(1.0 - wide(step.lr) * wide(step.weight_decay));
  c.beta1 = step.beta1;
  c.rest1 = static_cast<float>(1.0 - wide(step.beta1));
  c.beta2 = step.beta2;
  c.rest2 = static_cast<float>(1.0 - wide(step.beta2));
  c.rate = static_cast<float>(wide(step.lr) / wide(step.bias_correction1));
  c.root = static_cast<float>(1.0 / std::sqrt(wide(step.bias_correction2)));
  c.eps = step.eps;
  c.gradient_scale = step.gradient_scale;
  return c;
}

constexpr int kOwned = kPack<float>;  ///< parameters of a thread

template <bool kPacked, class T>
__global__ void __launch_bounds__(kRowThreads)
    adamw_kernel(float* master, const float* gradient, float* exp_avg, float* exp_avg_sq, T* compute,
                 Index count, Coefficients c, const device::UpdateDecision* decision) {
  const Index first = (static_cast<Index>(blockIdx.x) * kRowThreads + threadIdx.x) * kOwned;
  if (first >= count) return;
  float g[kOwned], p[kOwned], m[kOwned], v[kOwned];
  load_chunk<kPacked>(gradient, first, count, g);
  load_chunk<kPacked>(master, first, count, p);
  if (decision != nullptr) {
    if (decision->is_applied == 0) {
      if (compute != nullptr) store_chunk<kPacked>(compute, first, count, p);
      return;
    }
    c.gradient_scale = decision->gradient_scale;
  }
  load_chunk<kPacked>(exp_avg, first, count, m);
  load_chunk<kPacked>(exp_avg_sq, first, count, v);
#pragma unroll
  for (int i = 0; i < kOwned; ++i) {
    const float scaled = g[i] * c.gradient_scale;
    m[i] = c.beta1 * m[i] + c.rest1 * scaled;
    v[i] = c.beta2 * v[i] + c.rest2 * (scaled * scaled);
    p[i] = p[i] * c.decay - c.rate * m[i] / (sqrtf(v[i]) * c.root + c.eps);
  }
  store_chunk<kPacked>(exp_avg, first, count, m);
  store_chunk<kPacked>(exp_avg_sq, first, count, v);
  store_chunk<kPacked>(master, first, count, p);
  if (compute != nullptr) store_chunk<kPacked>(compute, first, count, p);
}

}  // namespace

void adamw(Vector master, ConstVector gradient, Vector exp_avg, Vector exp_avg_sq, Vector compute,
           const device::AdamWStep& step, const device::UpdateDecision* decision, cudaStream_t stream) {
  dispatch(compute.dtype, [&](auto zero) {
    using T = decltype(zero);
    auto* const p = static_cast<float*>(master.data);
    const auto* const g = static_cast<const float*>(gradient.data);
    auto* const m = static_cast<float*>(exp_avg.data);
    auto* const v = static_cast<float*>(exp_avg_sq.data);
    auto* const copy = static_cast<T*>(compute.data);
    const bool all_packed =
        is_packed(p, 0) && is_packed(g, 0) && is_packed(m, 0) && is_packed(v, 0) && is_packed(copy, 0);
    const Grid grid{blocks_for(master.size, Index{kRowThreads} * kOwned), kRowThreads};
    with_bool(all_packed, [&](auto packed) {
      launch("adamw", adamw_kernel<packed(), T>, grid, stream, p, g, m, v, copy, master.size,
             coefficients_of(step), decision);
    });
  });
}

}  // namespace cartan::kernels
