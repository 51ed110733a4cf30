// The end of a step without the host: blocks' sums of squares are added up exactly, as integers, whose order
// does not matter; one thread turns the sum into the norm and what AdamW multiplies gradients by.
//
//   exact_sum      reads 8 bytes a value, of which there is one for 1024 parameters; three integer additions
//                  in shared memory each. These decide: neighbours mostly add to the same words, so that a
//                  warp's additions queue up, about 0.2 ns a value on a whole GPU. For 10^9 parameters 0.2
//                  ms.
//   decide_update      one thread, some microseconds: 71 words
//   update_loss_scale  one thread, some microseconds
#include "decision.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base.cuh"
#include "cartan/core/exact_sum.hpp"

namespace cartan::kernels {
namespace {

constexpr int kThreads = 256, kValuesOfThread = 8, kMostBlocks = 256;
constexpr int kWords = static_cast<int>(ExactSum::kWordCount);
// ExactSum's layout: digits of 32 bits from 2^-1074 on, then what is not finite.
constexpr int kDigits = kWords - 3, kNan = kDigits, kPlusInfinity = kDigits + 1, kMinusInfinity = kDigits + 2;
constexpr int kDigitBits = 32, kLowest = -1074;
constexpr int kFractionBits = 52, kExponentOfNone = 0x7ff;
using Word = unsigned long long;  // two's complement, for atomicAdd

/// Adds a finite or other number to words that no carries leave.
__device__ void add_exactly(Word* words, double value) {
  const auto bits = static_cast<Word>(__double_as_longlong(value));
  const Word fraction = bits & ((Word{1} << kFractionBits) - 1);
  const int exponent = static_cast<int>(bits >> kFractionBits) & kExponentOfNone;
  const bool is_negative = (bits >> 63) != 0;
  if (exponent == kExponentOfNone) {
    atomicAdd(words + (fraction != 0 ? kNan : is_negative ? kMinusInfinity : kPlusInfinity), Word{1});
    return;
  }
  // mantissa * 2^(position + kLowest)
  const Word mantissa = exponent == 0 ? fraction : fraction | Word{1} << kFractionBits;
  if (mantissa == 0) return;
  const int position = exponent == 0 ? 0 : exponent - 1;
  const int digit = position / kDigitBits, shift = position % kDigitBits;
  const Word low = mantissa << shift, high = shift == 0 ? 0 : mantissa >> (64 - shift);
  const Word parts[] = {low & 0xffffffffu, low >> kDigitBits, high};
#pragma unroll
  for (int i = 0; i < 3; ++i)
    if (parts[i] != 0) atomicAdd(words + digit + i, is_negative ? Word{0} - parts[i] : parts[i]);
}

__global__ void __launch_bounds__(kThreads) exact_sum_kernel(const double* values, Index count, Word* words) {
  __shared__ Word sums[kWords];
  for (int i = static_cast<int>(threadIdx.x); i < kWords; i += kThreads) sums[i] = 0;
  __syncthreads();
  const Index step = static_cast<Index>(gridDim.x) * kThreads;
  for (Index i = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += step)
    add_exactly(sums, values[i]);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kWords; i += kThreads)
    if (sums[i] != 0) atomicAdd(words + i, sums[i]);
}

/// Every digit but the highest comes into [0, 2^32).
__device__ void carry(long long* digits) {
  long long over = 0;
#pragma unroll 1  // registers for a few digits, not for all
  for (int i = 0; i + 1 < kDigits; ++i) {
    const long long digit = digits[i] + over;
    over = digit >> kDigitBits;  // rounds down
    digits[i] = digit - over * (1LL << kDigitBits);
  }
  digits[kDigits - 1] += over;
}

__device__ double infinity() { return __longlong_as_double(0x7ff0000000000000LL); }

/// ExactSum::value(), on words that may change.
__device__ double rounded(long long* words) {
  const bool plus = words[kPlusInfinity] > 0, minus = words[kMinusInfinity] > 0;
  if (words[kNan] > 0 || (plus && minus)) return infinity() - infinity();
  if (plus || minus) return plus ? infinity() : -infinity();
  carry(words);
  const bool is_negative = words[kDigits - 1] < 0;
  if (is_negative) {
#pragma unroll 1
    for (int i = 0; i < kDigits; ++i) words[i] = -words[i];
    carry(words);
  }
  int top = kDigits - 1;
  while (top > 2 && words[top] == 0) --top;
  // The 64 bits from the leading one on; what lies below only decides ties.
  Word high = static_cast<Word>(words[top]) << kDigitBits | static_cast<Word>(words[top - 1]);
  Word low = static_cast<Word>(words[top - 2]) << kDigitBits;
  bool is_more = false;
  for (int i = 0; i + 2 < top; ++i) is_more = is_more || words[i] != 0;
  int shift = 0;
  if (high == 0) {
    high = low;
    low = 0;
    shift = 64;
  }
  if (high != 0) {
    const int zeros = __clzll(static_cast<long long>(high));
    if (zeros > 0) high = high << zeros | low >> (64 - zeros);
    is_more = is_more || low << zeros != 0;
    shift += zeros;
  }
  if (is_more) high |= 1;
  const double value = ldexp(static_cast<double>(high), (top - 1) * kDigitBits - shift + kLowest);
  return is_negative ? -value : value;
}

__global__ void __launch_bounds__(kWarp)
    decide_update_kernel(const std::int64_t* words, device::UpdateRule rule, const float* loss_scale,
                         device::UpdateDecision* decision) {
  __shared__ long long sum[kWords];
  for (int i = static_cast<int>(threadIdx.x); i < kWords; i += kWarp) sum[i] = words[i];
  __syncthreads();
  if (threadIdx.x > 0) return;
  const double scale = loss_scale == nullptr ? rule.scale : rule.scale / static_cast<double>(*loss_scale);
  const double norm = scale * sqrt(rounded(sum));
  double clipped = 1;
  if (rule.clip > 0) {
    const double share = rule.clip / (norm + 1e-6);
    if (share < 1) clipped = share;
  }
  decision->norm = norm;
  decision->gradient_scale = static_cast<float>(scale * clipped);
  decision->is_applied = norm < infinity() ? 1 : 0;
}

__global__ void __launch_bounds__(kWarp)
    update_loss_scale_kernel(const device::UpdateDecision* decision, device::LossScaleRule rule,
                             device::LossScaleState* state, float* of_loss) {
  if (threadIdx.x > 0) return;
  device::LossScaleState now = *state;
  device::move_loss_scale(now, rule, decision->is_applied == 0);
  *state = now;
  *of_loss = static_cast<float>(now.scale * rule.share);
}

}  // namespace

void exact_sum(std::span<const double> values, std::span<std::int64_t> words, cudaStream_t stream) {
  check(cudaMemsetAsync(words.data(), 0, words.size_bytes(), stream), "exact_sum");
  const auto count = static_cast<Index>(values.size());
  if (count == 0) return;
  const unsigned blocks = std::min(blocks_for(count, kThreads * kValuesOfThread), unsigned{kMostBlocks});
  launch("exact_sum", exact_sum_kernel, {blocks, kThreads}, stream, values.data(), count,
         reinterpret_cast<Word*>(words.data()));
}

void decide_update(std::span<const std::int64_t> words, const device::UpdateRule& rule,
                   const float* loss_scale, device::UpdateDecision* decision, cudaStream_t stream) {
  launch("decide_update", decide_update_kernel, {1, kWarp}, stream, words.data(), rule, loss_scale, decision);
}

void update_loss_scale(const device::UpdateDecision* decision, const device::LossScaleRule& rule,
                       device::LossScaleState* state, float* of_loss, cudaStream_t stream) {
  launch("update_loss_scale", update_loss_scale_kernel, {1, kWarp}, stream, decision, rule, state, of_loss);
}

}  // namespace cartan::kernels
