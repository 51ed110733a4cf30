// Cross-entropy of one row of logits, or of the columns of it that are here: maximum, sum of exponentials,
// gradient; the row stays in the cache.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/kernels_loss.cpp"
#include <hwy/foreach_target.h>  // before highway.h
#include <hwy/highway.h>

#include <cmath>

#include "device/cpu/exp-inl.hpp"
#include "device/cpu/kernels.hpp"
#include "device/cpu/simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace cartan::device::cpu::HWY_NAMESPACE {
namespace {

float row_maximum(const float* x, Index cols) {
  const VF lowest = hn::Set(F(), -HUGE_VALF);
  VF largest = lowest;
  Index i = 0;
  for (; i + lanes() <= cols; i += lanes()) largest = hn::Max(largest, load_full(x + i));
  HWY_ALIGN float buffer[kMaxLanes];
  hn::Store(largest, F(), buffer);
  float maximum = buffer[0];
  for (Index j = 1; j < lanes(); ++j) maximum = std::fmax(maximum, buffer[j]);
  for (; i < cols; ++i) maximum = std::fmax(maximum, x[i]);
  return maximum;
}

/// Four running sums; each has at most cols / (4 lanes) terms, all positive.
float sum_of_exp(const float* x, Index cols, float maximum) {
  const VF shift = hn::Set(F(), maximum);
  VF sums[4] = {hn::Zero(F()), hn::Zero(F()), hn::Zero(F()), hn::Zero(F())};
  const Index n = lanes(), stride = 4 * n;
  Index i = 0;
  for (; i + stride <= cols; i += stride) {
    sums[0] = hn::Add(sums[0], exp_of(hn::Sub(load_full(x + i), shift)));
    sums[1] = hn::Add(sums[1], exp_of(hn::Sub(load_full(x + i + n), shift)));
    sums[2] = hn::Add(sums[2], exp_of(hn::Sub(load_full(x + i + 2 * n), shift)));
    sums[3] = hn::Add(sums[3], exp_of(hn::Sub(load_full(x + i + 3 * n), shift)));
  }
  for (; i + n <= cols; i += n) sums[0] = hn::Add(sums[0], exp_of(hn::Sub(load_full(x + i), shift)));
  float sum = sum_lanes(hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3])));
  if (i < cols) {
    HWY_ALIGN float buffer[kMaxLanes];
    hn::Store(exp_of(hn::Sub(load(x + i, cols - i), shift)), F(), buffer);
    for (Index j = 0; j < cols - i; ++j) sum += buffer[j];
  }
  return sum;
}

/// Front to back: element i of a narrower dlogits at the same address lies at or before what was read.
template <class T>
void write_softmax(const float* x, Index cols, float maximum, float factor, T* out) {
  const VF shift = hn::Set(F(), maximum), scale = hn::Set(F(), factor);
  for (Index i = 0; i < cols; i += lanes()) {
    const VF value = hn::Mul(exp_of(hn::Sub(load(x + i, cols - i), shift)), scale);
    store(value, out + i, cols - i);
  }
}

SoftmaxStats stats_row(const float* logits, Index cols) {
  const float maximum = row_maximum(logits, cols);
  // Nothing, or -infinity only: the shift must be a number.
  return {maximum, sum_of_exp(logits, cols, maximum == -HUGE_VALF ? 0.0f : maximum)};
}

void gradient_row(const float* logits, Index cols, Index target, SoftmaxStats stats, void* dlogits,
                  DType dtype, float scale) {
  const bool here = target >= 0 && target < cols;
  // The target's element in fp32 before it is rounded: softmax - 1, without losing it in 16 bits.
  const float softmax_at_target = here ? std::exp(logits[target] - stats.maximum) / stats.sum : 0.0f;
  with_type(dtype, [&]<class T>() HWY_ATTR {
    write_softmax(logits, cols, stats.maximum, scale / stats.sum, as<T>(dlogits));
    if (here) store(hn::Set(F(), scale * (softmax_at_target - 1.0f)), as<T>(dlogits) + target, 1);
  });
}

float loss_row(const float* logits, Index cols, Index target, void* dlogits, DType dtype, float scale) {
  const SoftmaxStats stats = stats_row(logits, cols);
  const float target_logit = logits[target];
  if (dlogits != nullptr) gradient_row(logits, cols, target, stats, dlogits, dtype, scale);
  return std::log(stats.sum) + (stats.maximum - target_logit);
}

}  // namespace
}  // namespace cartan::device::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cartan::device::cpu {

HWY_EXPORT(loss_row);
HWY_EXPORT(stats_row);
HWY_EXPORT(gradient_row);

float cross_entropy_row(const float* logits, Index cols, Index target, void* dlogits, DType dtype,
                        float scale) {
  return HWY_DYNAMIC_DISPATCH(loss_row)(logits, cols, target, dlogits, dtype, scale);
}

SoftmaxStats softmax_stats(const float* logits, Index cols) {
  return HWY_DYNAMIC_DISPATCH(stats_row)(logits, cols);
}

void cross_entropy_gradient(const float* logits, Index cols, Index target, SoftmaxStats stats, void* dlogits,
                            DType dtype, float scale) {
  HWY_DYNAMIC_DISPATCH(gradient_row)(logits, cols, target, stats, dlogits, dtype, scale);
}

}  // namespace cartan::device::cpu
#endif
