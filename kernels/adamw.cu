// AdamW in one pass over a range of parameters: eight a thread, all arithmetic as on the cpu device (no fused
// multiply-adds, exact root and division), hence the same bits.
//
// Moved for each parameter: 16 bytes read, 12 written and the copy (2 or 4): 28 to 32. About 14 FLOPs, so
// memory decides: 90 % of its peak is expected for units of 10 million parameters and more.
// Source: Loshchilov and Hutter 2019, arXiv:1711.05101.
#include "adamw.hpp"

#include <cmath>

#include "octet.cuh"

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

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads)
    adamw_kernel(float* master, const float* gradient, float* exp_avg, float* exp_avg_sq, T* compute,
                 Index count, bool packed, Coefficients c, const device::UpdateDecision* decision) {
  const Index first = (static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x) * kOctet;
  const Index left = count - first;
  if (left <= 0) return;
  const Octet g = load_octet(gradient + first, left, packed);
  Octet p = load_octet(master + first, left, packed);
  if (decision != nullptr) {
    if (decision->is_applied == 0) {
      if (compute != nullptr) store_octet(compute + first, p, left, packed);
      return;
    }
    c.gradient_scale = decision->gradient_scale;
  }
  Octet m = load_octet(exp_avg + first, left, packed);
  Octet v = load_octet(exp_avg_sq + first, left, packed);
#pragma unroll
  for (int i = 0; i < kOctet; ++i) {
    const float scaled = g.at[i] * c.gradient_scale;
    m.at[i] = c.beta1 * m.at[i] + c.rest1 * scaled;
    v.at[i] = c.beta2 * v.at[i] + c.rest2 * (scaled * scaled);
    p.at[i] = p.at[i] * c.decay - c.rate * m.at[i] / (sqrtf(v.at[i]) * c.root + c.eps);
  }
  store_octet(exp_avg + first, m, left, packed);
  store_octet(exp_avg_sq + first, v, left, packed);
  store_octet(master + first, p, left, packed);
  if (compute != nullptr) store_octet(compute + first, p, left, packed);
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
    const bool packed = is_packed(p) && is_packed(g) && is_packed(m) && is_packed(v) && is_packed(copy);
    launch("adamw", adamw_kernel<T>, {blocks_for(master.size, kThreads * kOctet), kThreads}, stream, p, g, m,
           v, copy, master.size, packed, coefficients_of(step), decision);
  });
}

}  // namespace cartan::kernels
