// Choosing by rank, for kernels that look for the largest of many numbers: sums over the threads before one,
// and the bin of a histogram in which the last one to take lies. The numbers' order is 32 bits, found digit
// by digit; all sums are of whole numbers, so that they have no order.
#pragma once

#include "base.cuh"

namespace cartan::kernels {

/// The digits of an order, the highest first: 11, 11 and 10 bits.
inline constexpr int kDigits = 3, kMostBins = 2048;
__host__ __device__ constexpr int shift_of(int digit) { return digit == 0 ? 21 : digit == 1 ? 10 : 0; }
__host__ __device__ constexpr int bins_of(int digit) { return digit == 2 ? 1024 : 2048; }

template <class T>
__device__ T warp_scan(T value, int lane) {
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const T before = __shfl_up_sync(kAllLanes, value, distance);
    if (lane >= distance) value += before;
  }
  return value;
}

struct ScanScratch {
  unsigned long long warp[kWarp];
};

/// The sum over the threads of the block before this one; total: over all.
__device__ inline unsigned long long block_scan(unsigned long long value, ScanScratch& scratch,
                                                unsigned long long& total) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, number = static_cast<int>(threadIdx.x) / kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const unsigned long long inside = warp_scan(value, lane);
  __syncthreads();  // scratch may still be read from the call before
  if (lane == kWarp - 1) scratch.warp[number] = inside;
  __syncthreads();
  unsigned long long before = 0;
  total = 0;
  for (int w = 0; w < warps; ++w) {
    if (w < number) before += scratch.warp[w];
    total += scratch.warp[w];
  }
  return before + inside - value;
}

/// Counted from the highest bin down, the sums of the bins reach `wanted`, which is not 0 nor more than all,
/// in one of them: its thread calls found(bin, what is wanted of it). For a whole block; the number of bins
/// is a multiple of its threads. `sum_of` is called before the first barrier as well as after the last.
template <class SumOf, class Found>
__device__ void find_bin(int bins, unsigned long long wanted, const SumOf& sum_of, ScanScratch& scratch,
                         const Found& found) {
  const int each = bins / static_cast<int>(blockDim.x);
  const int highest = bins - 1 - static_cast<int>(threadIdx.x) * each;
  unsigned long long mine = 0, total = 0;
  for (int i = 0; i < each; ++i) mine += sum_of(highest - i);
  unsigned long long above = block_scan(mine, scratch, total);
  for (int i = 0; i < each; ++i) {
    const unsigned long long sum = sum_of(highest - i);
    if (above < wanted && wanted <= above + sum) found(highest - i, wanted - above);
    above += sum;
  }
}

}  // namespace cartan::kernels
