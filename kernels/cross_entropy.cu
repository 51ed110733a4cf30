// Cross-entropy over the vocabulary, or over a part of it: one block a row of logits. The first pass keeps a
// maximum and a sum of exponentials relative to it in each thread and then over the block; the second one
// writes the gradient, also over the logits. Which thread adds what depends on the width of the row only.
//
// Moved for each logit: 4 bytes read twice (a row of 128 Ki, 512 KiB, times the blocks under way does not
// stay in the L2 cache) and 2 or 4 written: 10 to 12. Some 25 FLOPs, two thirds of them in two exponentials:
// memory decides, 85 % of its peak is expected.
// A thread's eight logits are two packs: each of the two requests of a warp takes half of 32 sectors, and the
// second finds them in the L1 cache. Requests move 1.7 to 2 times the bytes, the memory does not.
// A target that the vocabulary lacks gives a loss of NaN: kernels cannot throw.
// Sources: Milakov and Gimelshein 2018, arXiv:1805.02867 (the sum in one pass); Shoeybi et al. 2019,
// arXiv:1909.08053 (the cut vocabulary).
#include "cross_entropy.hpp"

#include "octet.cuh"

namespace cartan::kernels {
namespace {

/// Threads of a row's block; small rows take few.
unsigned threads_for(Index cols) { return cols <= 1024 ? 128 : 512; }

struct Stats {
  float maximum, sum;  ///< sum of exp(logit - maximum)
};

/// What exponents are taken relative to: a number also where there is nothing, or -infinity only.
__device__ __forceinline__ float shift_of(float maximum) { return maximum == -INFINITY ? 0.0f : maximum; }

/// The same values in every thread.
__device__ Stats row_stats(const float* logits, Index cols, bool packed, BlockScratch& scratch) {
  float maximum = -INFINITY, sum = 0.0f;
  const Index step = static_cast<Index>(blockDim.x) * kOctet;
  for (Index first = static_cast<Index>(threadIdx.x) * kOctet; first < cols; first += step) {
    const Index left = cols - first;
    const Octet x = load_octet(logits + first, left, packed);
    float larger = maximum;
#pragma unroll
    for (int i = 0; i < kOctet; ++i)
      if (i < left) larger = fmaxf(larger, x.at[i]);
    const float shift = shift_of(larger);
    sum *= expf(maximum - shift);
#pragma unroll
    for (int i = 0; i < kOctet; ++i)
      if (i < left) sum += expf(x.at[i] - shift);
    maximum = larger;
  }
  const float of_all = block_max(maximum, scratch);
  sum *= expf(maximum - shift_of(of_all));
  return {of_all, block_sum(sum, scratch)};
}

/// scale * (softmax - onehot). dlogits may start where logits start: what a narrower result of round r
/// overwrites was read in round r / 2, so a barrier whenever the number of rounds has doubled keeps every
/// write behind the reads of the other threads.
template <class T>
__device__ void write_gradient(const float* logits, Index cols, Index target, Stats stats, float scale,
                               T* dlogits, bool packed_logits, bool packed_dlogits) {
  const float factor = scale / stats.sum;
  const Index step = static_cast<Index>(blockDim.x) * kOctet;
  Index allowed = -1;  // the last round that may be written
  for (Index round = 0; round * step < cols; ++round) {
    const Index first = round * step + static_cast<Index>(threadIdx.x) * kOctet, left = cols - first;
    Octet x;
    if (left > 0) x = load_octet(logits + first, left, packed_logits);
    if (sizeof(T) < sizeof(float) && round > allowed) {
      __syncthreads();
      allowed = 2 * round + 1;
    }
    if (left <= 0) continue;
#pragma unroll
    for (int i = 0; i < kOctet; ++i) {
      const float e = expf(x.at[i] - stats.maximum);
      // In fp32 before it is rounded: softmax - 1, without losing it in 16 bits.
      x.at[i] = first + i == target ? scale * (e / stats.sum - 1.0f) : e * factor;
    }
    store_octet(dlogits + first, x, left, packed_dlogits);
  }
}

template <class T>
__device__ void write_zeros(T* dlogits, Index cols, bool packed) {
  const Octet zeros{};
  const Index step = static_cast<Index>(blockDim.x) * kOctet;
  for (Index first = static_cast<Index>(threadIdx.x) * kOctet; first < cols; first += step)
    store_octet(dlogits + first, zeros, cols - first, packed);
}

/// A matrix with one block a row.
template <class T>
struct Rows {
  T* data;
  Index cols, stride;
  bool packed;
  __device__ T* mine() const { return data + static_cast<Index>(blockIdx.x) * stride; }
};

Rows<const float> rows_of(const ConstMatrix& x) {
  const auto* const data = static_cast<const float*>(x.data);
  return {data, x.cols, x.stride, is_packed(data, x.stride)};
}

template <class T>
Rows<T> rows_of(const Matrix& x) {
  auto* const data = static_cast<T*>(x.data);
  return {data, x.cols, x.stride, is_packed(data, x.stride)};
}

template <class T>
__global__ void __launch_bounds__(512)
    cross_entropy_kernel(Rows<const float> logits, const std::int32_t* targets, float* row_loss,
                         Rows<T> dlogits, const float* scale) {
  __shared__ BlockScratch scratch;
  const Index target = targets[blockIdx.x];
  if (target < 0) {
    if (threadIdx.x == 0) row_loss[blockIdx.x] = 0.0f;
    if (dlogits.data != nullptr) write_zeros(dlogits.mine(), logits.cols, dlogits.packed);
    return;
  }
  const float* const row = logits.mine();
  const float target_logit = target < logits.cols ? row[target] : NAN;
  const Stats stats = row_stats(row, logits.cols, logits.packed, scratch);
  if (threadIdx.x == 0) row_loss[blockIdx.x] = logf(stats.sum) + (stats.maximum - target_logit);
  if (dlogits.data != nullptr)
    write_gradient(row, logits.cols, target, stats, scale == nullptr ? 1.0f : *scale, dlogits.mine(),
                   logits.packed, dlogits.packed);
}

__global__ void __launch_bounds__(512)
    cross_entropy_stats_kernel(Rows<const float> logits, const std::int32_t* targets, Index first,
                               float* row_max, float* row_sum, float* target_logit) {
  __shared__ BlockScratch scratch;
  const float* const row = logits.mine();
  const Stats stats = row_stats(row, logits.cols, logits.packed, scratch);
  if (threadIdx.x != 0) return;
  const Index target = targets[blockIdx.x] - first;
  row_max[blockIdx.x] = stats.maximum;
  row_sum[blockIdx.x] = stats.sum;
  target_logit[blockIdx.x] = target >= 0 && target < logits.cols ? row[target] : -INFINITY;
}

constexpr int kCombineThreads = 128;

/// One thread a row. Part p's statistics are the rows 3 p, 3 p + 1 and 3 p + 2 of stacked.
__global__ void __launch_bounds__(kCombineThreads)
    cross_entropy_combine_kernel(const float* stacked, Index stride, Index parts, Index rows, float* row_max,
                                 float* row_sum, float* target_logit) {
  const Index row = static_cast<Index>(blockIdx.x) * kCombineThreads + threadIdx.x;
  if (row >= rows) return;
  float maximum = -INFINITY, target = -INFINITY, sum = 0.0f;
  for (Index part = 0; part < parts; ++part) {
    maximum = fmaxf(maximum, stacked[3 * part * stride + row]);
    target = fmaxf(target, stacked[(3 * part + 2) * stride + row]);
  }
  for (Index part = 0; part < parts; ++part) {
    const float part_sum = stacked[(3 * part + 1) * stride + row];
    if (part_sum != 0.0f) sum += part_sum * expf(stacked[3 * part * stride + row] - maximum);
  }
  row_max[row] = maximum;
  row_sum[row] = sum;
  target_logit[row] = target;
}

template <class T>
__global__ void __launch_bounds__(512)
    cross_entropy_finish_kernel(Rows<const float> logits, const std::int32_t* targets, Index first,
                                const float* row_max, const float* row_sum, const float* target_logit,
                                float* row_loss, Rows<T> dlogits, const float* scale) {
  const Index target = targets[blockIdx.x];
  const Stats stats{row_max[blockIdx.x], row_sum[blockIdx.x]};
  if (threadIdx.x == 0 && row_loss != nullptr)
    row_loss[blockIdx.x] = target < 0 ? 0.0f : logf(stats.sum) + (stats.maximum - target_logit[blockIdx.x]);
  if (dlogits.data == nullptr) return;
  if (target < 0)
    write_zeros(dlogits.mine(), logits.cols, dlogits.packed);
  else
    write_gradient(logits.mine(), logits.cols, target - first, stats, scale == nullptr ? 1.0f : *scale,
                   dlogits.mine(), logits.packed, dlogits.packed);
}

float* floats(const Vector& vector) { return static_cast<float*>(vector.data); }
const float* floats(const ConstVector& vector) { return static_cast<const float*>(vector.data); }

}  // namespace

void cross_entropy(ConstMatrix logits, std::span<const std::int32_t> targets, Vector row_loss, Matrix dlogits,
                   const float* scale, cudaStream_t stream) {
  dispatch(dlogits.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch("cross_entropy", cross_entropy_kernel<T>, {blocks_for(logits.rows, 1), threads_for(logits.cols)},
           stream, rows_of(logits), targets.data(), floats(row_loss), rows_of<T>(dlogits), scale);
  });
}

void cross_entropy_stats(ConstMatrix logits, std::span<const std::int32_t> targets, Index first,
                         Vector row_max, Vector row_sum, Vector target_logit, cudaStream_t stream) {
  launch("cross_entropy_stats", cross_entropy_stats_kernel,
         {blocks_for(logits.rows, 1), threads_for(logits.cols)}, stream, rows_of(logits), targets.data(),
         first, floats(row_max), floats(row_sum), floats(target_logit));
}

void cross_entropy_combine(ConstMatrix stacked, Index parts, Vector row_max, Vector row_sum,
                           Vector target_logit, cudaStream_t stream) {
  launch("cross_entropy_combine", cross_entropy_combine_kernel,
         {blocks_for(stacked.cols, kCombineThreads), kCombineThreads}, stream,
         static_cast<const float*>(stacked.data), stacked.stride, parts, stacked.cols, floats(row_max),
         floats(row_sum), floats(target_logit));
}

void cross_entropy_finish(ConstMatrix logits, std::span<const std::int32_t> targets, Index first,
                          ConstVector row_max, ConstVector row_sum, ConstVector target_logit, Vector row_loss,
                          Matrix dlogits, const float* scale, cudaStream_t stream) {
  dispatch(dlogits.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch("cross_entropy_finish", cross_entropy_finish_kernel<T>,
           {blocks_for(logits.rows, 1), threads_for(logits.cols)}, stream, rows_of(logits), targets.data(),
           first, floats(row_max), floats(row_sum), floats(target_logit), floats(row_loss),
           rows_of<T>(dlogits), scale);
  });
}

}  // namespace cartan::kernels
