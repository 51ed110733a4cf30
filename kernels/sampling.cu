// The next token from a row of logits: one block a row. What is kept are the largest logits, down to a
// threshold that is found in three digits, from sums over a histogram in shared memory: of ones for top_k, of
// weights for top_p. Then the pick: each warp weighs a piece of the row, and the block goes through the piece
// that holds the token. All sums are of whole numbers: atomics do not change them.
//
// A row of V is read once for the largest logit, once and a bit to weigh and pick, three times for top_k,
// four more for top_p: 8 to 36 V bytes, the first 4 from memory, the others from the L2 cache. A weight costs
// some 30 FLOPs in fp64; there is none at temperature 0, else one a logit, 3 with top_p, few with top_k. One
// multiprocessor decides: it reads some 100 GB/s and makes (9.0) 64 FLOPs in fp64 a cycle. V = 128 Ki takes 5
// us at temperature 0 (3 % of the memory's peak; 80 % from as many rows on as there are multiprocessors), 45
// us at others, 120 us with top_p; 8.0 has half the fp64. A warp's additions to the histogram fall on any
// bins: 3.6 passes each.
#include "sampling.hpp"

#include "octet.cuh"
#include "selection.cuh"

namespace cartan::kernels {
namespace {

using device::SamplingRule;
using device::TokenWeight;
using Whole = unsigned long long;

constexpr int kMostThreads = 512, kMostWarps = kMostThreads / kWarp;
/// Small rows take few.
unsigned threads_for(Index cols) { return cols <= 1024 ? 128 : kMostThreads; }

__device__ __forceinline__ unsigned order(float logit) { return device::order_of(__float_as_uint(logit)); }
__device__ __forceinline__ float logit_of(unsigned order) {
  return __uint_as_float(device::bits_in_place(order));
}

struct Row {
  const float* logits;
  Index size;
  bool packed;
};

/// f(id, order) for the ids from `begin` to `end`, eight neighbours a thread, in ascending order.
template <class F>
__device__ __forceinline__ void for_octet(const Row& row, Index begin, Index end, const F& f) {
  if (begin >= end) return;
  const Octet octet = load_octet(row.logits + begin, end - begin, row.packed);
#pragma unroll
  for (int i = 0; i < kOctet; ++i)
    if (begin + i < end) f(begin + i, order(octet.at[i]));
}

/// The same for the whole row, shared by the block.
template <class F>
__device__ __forceinline__ void for_row(const Row& row, const F& f) {
  const Index step = static_cast<Index>(blockDim.x) * kOctet;
  for (Index first = static_cast<Index>(threadIdx.x) * kOctet; first < row.size; first += step)
    for_octet(row, first, row.size, f);
}

/// All logits above the threshold, and the first `equal` of those that are equal to it.
struct Kept {
  unsigned threshold;
  Whole equal;
};

struct Shared {
  /// Sums of a histogram's bins, in two words of 32 bits: shared memory adds these at once.
  unsigned low[kMostBins], high[kMostBins];
  ScanScratch scan;
  Whole best[kMostWarps];
  /// Of each warp's piece: the weight above the threshold, the number of logits equal to it.
  Whole above[kMostWarps], equal[kMostWarps];
  unsigned threshold;
  Whole wanted;
};

__device__ __forceinline__ void add(Shared& shared, unsigned bin, Whole value) {
  const auto low = static_cast<unsigned>(value);
  const unsigned before = atomicAdd(&shared.low[bin], low);
  const unsigned high = static_cast<unsigned>(value >> 32) + (before + low < before ? 1u : 0u);
  if (high != 0) atomicAdd(&shared.high[bin], high);
}

/// The largest order, in the upper half, and the complement of its first id, the same to each thread.
__device__ Whole find_best(const Row& row, Shared& shared) {
  Whole best = 0;
  for_row(row, [&](Index id, unsigned bits) {
    const Whole candidate = Whole{bits} << 32 | (0xffffffffu - static_cast<unsigned>(id));
    best = candidate > best ? candidate : best;
  });
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const Whole other = __shfl_xor_sync(kAllLanes, best, distance);
    best = other > best ? other : best;
  }
  if (threadIdx.x % kWarp == 0) shared.best[threadIdx.x / kWarp] = best;
  __syncthreads();
  for (unsigned w = 0; w < blockDim.x / kWarp; ++w) best = shared.best[w] > best ? shared.best[w] : best;
  return best;
}

/// The fewest of the largest logits that measure at least `wanted` together.
template <class Measure>
__device__ Kept find_largest(const Row& row, Whole wanted, const Measure& measure, Shared& shared) {
  unsigned threshold = 0;
  for (int digit = 0; digit < kDigits; ++digit) {
    const int shift = shift_of(digit), bins = bins_of(digit);
    for (int bin = static_cast<int>(threadIdx.x); bin < bins; bin += static_cast<int>(blockDim.x))
      shared.low[bin] = shared.high[bin] = 0;
    __syncthreads();
    for_row(row, [&](Index, unsigned bits) {
      const unsigned digits = bits >> shift, of_bins = static_cast<unsigned>(bins);
      if (digit == 0 || digits / of_bins == threshold) add(shared, digits % of_bins, measure(bits));
    });
    __syncthreads();
    find_bin(
        bins, wanted, [&](int bin) { return Whole{shared.high[bin]} << 32 | shared.low[bin]; }, shared.scan,
        [&](int bin, Whole left) {
          shared.threshold = threshold * static_cast<unsigned>(bins) + static_cast<unsigned>(bin);
          shared.wanted = left;
        });
    __syncthreads();
    threshold = shared.threshold;
    wanted = shared.wanted;
  }
  const Whole each = measure(threshold);
  return {threshold, (wanted + each - 1) / each};
}

/// Where the pick stands: at the start of a piece of the row.
struct Place {
  Index begin, end;
  Whole weight, equal;  ///< kept before, equal to the threshold before
};

/// Logits of a warp's piece: whole loads of the warp.
__device__ Index piece_of(const Row& row) {
  constexpr Index kLoad = Index{kWarp} * kOctet;
  const Index warps = blockDim.x / kWarp;
  return (row.size + warps * kLoad - 1) / (warps * kLoad) * kLoad;
}

__device__ __forceinline__ Whole smaller(Whole a, Whole b) { return a < b ? a : b; }

__device__ Whole warp_total(Whole x) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(kAllLanes, x, distance);
  return x;
}

/// The weight of all that is kept; that of the pieces stays in shared memory.
__device__ Whole weigh(const Row& row, const Kept& kept, const TokenWeight& weight, Shared& shared) {
  const Index piece = piece_of(row), begin = piece * (threadIdx.x / kWarp);
  const Index end = begin + piece < row.size ? begin + piece : row.size;
  Whole above = 0, equal = 0;
  for (Index first = begin + Index{threadIdx.x % kWarp} * kOctet; first < end; first += Index{kWarp} * kOctet)
    for_octet(row, first, end, [&](Index, unsigned bits) {
      if (bits > kept.threshold) above += weight(logit_of(bits));
      if (bits == kept.threshold) ++equal;
    });
  above = warp_total(above);
  equal = warp_total(equal);
  if (threadIdx.x % kWarp == 0) {
    shared.above[threadIdx.x / kWarp] = above;
    shared.equal[threadIdx.x / kWarp] = equal;
  }
  __syncthreads();
  Whole total = kept.equal == 0 ? 0 : kept.equal * weight(logit_of(kept.threshold));
  for (unsigned w = 0; w < blockDim.x / kWarp; ++w) total += shared.above[w];
  return total;
}

/// The piece in which the weights exceed `target`.
__device__ Place find_piece(const Row& row, const Kept& kept, Whole target, const TokenWeight& weight,
                            const Shared& shared) {
  const Index piece = piece_of(row);
  const Whole each = kept.equal == 0 ? 0 : weight(logit_of(kept.threshold));
  Place place{0, 0, 0, 0};
  for (unsigned w = 0; w < blockDim.x / kWarp; ++w) {
    const Whole left = kept.equal - smaller(place.equal, kept.equal);
    const Whole inside = shared.above[w] + smaller(shared.equal[w], left) * each;
    if (place.weight + inside > target) {
      place.begin = piece * w;
      place.end = place.begin + piece < row.size ? place.begin + piece : row.size;
      break;
    }
    place.weight += inside;
    place.equal += shared.equal[w];
  }
  return place;
}

/// The first id of the place with which the kept weights exceed `target`: its thread writes it.
__device__ void pick(const Row& row, const Kept& kept, Place place, Whole target, const TokenWeight& weight,
                     Shared& shared, std::int32_t* token) {
  const Index step = static_cast<Index>(blockDim.x) * kOctet;
  for (Index tile = place.begin; tile < place.end && place.weight <= target; tile += step) {
    const Index first = tile + static_cast<Index>(threadIdx.x) * kOctet;
    Whole mine = 0, total = 0;
    for_octet(row, first, place.end, [&](Index, unsigned bits) { mine += bits == kept.threshold ? 1 : 0; });
    const Whole equal_before = place.equal + block_scan(mine, shared.scan, total);
    place.equal += total;
    // f(id, weight) for what is kept of this thread's logits.
    const auto for_kept = [&](const auto& f) {
      Whole equal = equal_before;
      for_octet(row, first, place.end, [&](Index id, unsigned bits) {
        if (bits > kept.threshold || (bits == kept.threshold && equal++ < kept.equal))
          f(id, weight(logit_of(bits)));
      });
    };
    mine = 0;
    for_kept([&](Index, Whole value) { mine += value; });
    Whole sum = place.weight + block_scan(mine, shared.scan, total);
    place.weight += total;
    if (sum > target || target >= sum + mine) continue;
    for_kept([&](Index id, Whole value) {
      if (sum <= target && target < sum + value) *token = static_cast<std::int32_t>(id);
      sum += value;
    });
  }
}

__global__ void __launch_bounds__(kMostThreads)
    sample_kernel(const float* logits, Index stride, Index cols, bool packed, const double* uniforms,
                  SamplingRule rule, std::int32_t* tokens) {
  __shared__ Shared shared;
  const Row row{logits + static_cast<Index>(blockIdx.x) * stride, cols, packed};
  std::int32_t* const token = tokens + blockIdx.x;
  const Whole best = find_best(row, shared);
  const auto largest = static_cast<unsigned>(best >> 32);
  const bool is_finite = device::is_order_of_finite(largest);
  if (!is_finite || rule.temperature == 0) {
    const auto id = static_cast<std::int32_t>(0xffffffffu - static_cast<unsigned>(best));
    if (threadIdx.x == 0) *token = is_finite ? id : -1;
    return;
  }
  const TokenWeight weight(logit_of(largest), rule.temperature);
  Kept kept{0, 0};
  if (rule.top_k > 0 && rule.top_k < cols)
    kept = find_largest(
        row, static_cast<Whole>(rule.top_k), [](unsigned) { return Whole{1}; }, shared);
  Whole total = weigh(row, kept, weight, shared);
  if (rule.top_p < 1) {
    const Whole wanted = device::part_of(total, rule.top_p, true);
    kept = find_largest(
        row, wanted > 0 ? wanted : 1, [&](unsigned bits) { return Whole{weight(logit_of(bits))}; }, shared);
    total = weigh(row, kept, weight, shared);
  }
  const Whole target = device::part_of(total, uniforms[blockIdx.x], false);
  pick(row, kept, find_piece(row, kept, target, weight, shared), target, weight, shared, token);
}

// A thread an id. Reads 8 and writes 4 bytes an id, the logits in sectors of their own: it is the launch that
// counts.
__global__ void __launch_bounds__(kMostThreads)
    penalise_repeats_kernel(float* logits, Index size, const std::int32_t* ids, Index count, float penalty) {
  const Index i = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const Index id = ids[i];
  if (id >= 0 && id < size) logits[id] = device::penalised(logits[id], penalty);
}

}  // namespace

void penalise_repeats(device::Vector logits, std::span<const std::int32_t> ids, float penalty,
                      cudaStream_t stream) {
  const auto count = static_cast<Index>(ids.size());
  launch("penalise_repeats", penalise_repeats_kernel, {blocks_for(count, kMostThreads), kMostThreads}, stream,
         static_cast<float*>(logits.data), logits.size, ids.data(), count, penalty);
}

void sample(device::ConstMatrix logits, std::span<const double> uniforms, const SamplingRule& rule,
            std::span<std::int32_t> tokens, cudaStream_t stream) {
  const auto* const data = static_cast<const float*>(logits.data);
  launch("sample", sample_kernel, {blocks_for(logits.rows, 1), threads_for(logits.cols)}, stream, data,
         logits.stride, logits.cols, is_packed(data, logits.stride), uniforms.data(), rule, tokens.data());
}

}  // namespace cartan::kernels
