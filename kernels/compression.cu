// What compressed gradients need: orthonormal rows, the elements of largest magnitude, sparse sums.
//
// orthonormalise_rows: modified Gram-Schmidt by one block, which reads and writes a row once for each row
// before it, twice: 12 R^2 N bytes and about 4 R^2 N FLOPs in fp64 for R rows of N. One multiprocessor moves
// some 100 GB/s: R = 4 and N = 16384 take 30 us. From kWideWork on the columns are shared by up to 128 blocks
// and each row takes all its shares at once (classical Gram-Schmidt, whose second time is as good): the same
// bytes at up to the whole device's rate, seven launches a row.
//
// take_largest: the bits of a magnitude are ordered as magnitudes are. Three passes find the threshold, 11,
// 11 and 10 bits at a time, by counting; a fourth counts what each piece of x has to give, a fifth moves it:
// 20 bytes read an element; 80 % of the memory's peak is expected from 10 million elements on. A thread's
// eight elements are two packs, which two requests of a warp read: the second finds its sectors in the L1
// cache. Counters are whole numbers: atomics do not change them.
//
// scatter_add: 16 bytes an element, at random addresses.
#include "compression.hpp"

#include <algorithm>

#include "octet.cuh"
#include "selection.cuh"

namespace cartan::kernels {
namespace {

__device__ __forceinline__ Index thread_number() {
  return static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x;
}

// --- orthonormal rows

/// Less than this share of a row's length left: no direction of its own.
constexpr double kLeast = 1e-5;

struct Rows {
  float* data;
  Index rows, cols, stride;
  __device__ float* row(Index r) const { return data + r * stride; }
};

__device__ __forceinline__ double warp_sum(double x) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(kAllLanes, x, distance);
  return x;
}

struct WideScratch {
  double warp[kWarp];
  double all;
};

/// The sum over the block, the same bits to each thread. Its barriers keep calls with the same scratch apart.
__device__ double block_sum(double x, WideScratch& scratch) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, number = static_cast<int>(threadIdx.x) / kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  x = warp_sum(x);
  if (lane == 0) scratch.warp[number] = x;
  __syncthreads();
  if (number == 0) {
    x = warp_sum(lane < warps ? scratch.warp[lane] : 0.0);
    if (lane == 0) scratch.all = x;
  }
  __syncthreads();
  return scratch.all;
}

/// Products of floats are exact in fp64.
__device__ double block_dot(const float* a, const float* b, Index count, WideScratch& scratch) {
  double sum = 0;
#pragma unroll 4
  for (Index c = threadIdx.x; c < count; c += blockDim.x)
    sum = fma(static_cast<double>(a[c]), static_cast<double>(b[c]), sum);
  return block_sum(sum, scratch);
}

/// The length is usable: not nearly nothing, and what is not finite stays so.
__device__ __forceinline__ bool is_direction(double before, double length) {
  return !(before < INFINITY) || !(length <= kLeast * before);
}

/// +1 or -1, as if at random: the sequence of the cpu device.
__device__ float sign_of(Index row, Index col) {
  auto bits = static_cast<std::uint64_t>(row) * 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(col);
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;  // the mixing steps of SplitMix64
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  return (bits >> 63) != 0 ? 1.0f : -1.0f;
}

/// Takes the directions of the rows before it out of row r, twice, and gives it length 1. False, and the row
/// undefined, where nothing remains. Each thread reads and writes columns of its own only.
__device__ bool normalise(const Rows& x, Index r, WideScratch& scratch) {
  float* const row = x.row(r);
  for (int pass = 0; pass < 2; ++pass) {
    const double before = sqrt(block_dot(row, row, x.cols, scratch));
    for (Index other = 0; other < r; ++other) {
      const float* const direction = x.row(other);
      const double share = block_dot(row, direction, x.cols, scratch);
      for (Index c = threadIdx.x; c < x.cols; c += blockDim.x)
        row[c] = static_cast<float>(static_cast<double>(row[c]) - share * static_cast<double>(direction[c]));
    }
    const double length = sqrt(block_dot(row, row, x.cols, scratch));
    if (!is_direction(before, length)) return false;
    for (Index c = threadIdx.x; c < x.cols; c += blockDim.x)
      row[c] = static_cast<float>(static_cast<double>(row[c]) / length);
  }
  return true;
}

/// Another direction for row r. Nearly any sequence of signs has one; coordinates are the last resort.
__device__ void replace(const Rows& x, Index r, WideScratch& scratch) {
  float* const row = x.row(r);
  for (Index c = threadIdx.x; c < x.cols; c += blockDim.x) row[c] = sign_of(r, c);
  bool is_found = normalise(x, r, scratch);
  for (Index axis = 0; axis < x.cols && !is_found; ++axis) {
    for (Index c = threadIdx.x; c < x.cols; c += blockDim.x) row[c] = c == axis ? 1.0f : 0.0f;
    is_found = normalise(x, r, scratch);
  }
}

constexpr int kBlockThreads = 512;

__global__ void __launch_bounds__(kBlockThreads) orthonormalise_kernel(Rows x) {
  __shared__ WideScratch scratch;
  for (Index r = 0; r < x.rows; ++r) {
    if (r >= x.cols) {
      for (Index c = threadIdx.x; c < x.cols; c += blockDim.x) x.row(r)[c] = 0.0f;
    } else if (!normalise(x, r, scratch)) {
      replace(x, r, scratch);
    }
  }
}

/// What the blocks of one row tell each other, from launch to launch.
struct Shares {
  double* partial;  ///< [blocks, rows]: row r with rows 0 ... r, over the block's columns
  double* squares;  ///< [blocks]: of what is left of row r
  double* before;   ///< its length before
  int* failed;      ///< [2]: whether pass 0, pass 1 of row r found no direction
};

constexpr int kWideThreads = 256, kWideWarps = kWideThreads / kWarp;

struct Columns {
  Index begin, end;
};
__device__ Columns my_columns(const Rows& x) {
  const Index width = (x.cols + gridDim.x - 1) / gridDim.x, begin = width * blockIdx.x;
  return {begin < x.cols ? begin : x.cols, begin + width < x.cols ? begin + width : x.cols};
}

/// Skipped, with the rest of the row, where pass 0 failed.
__device__ bool is_over(const Shares& shares, int pass) { return pass == 1 && shares.failed[0] != 0; }

__global__ void __launch_bounds__(kWideThreads) shares_kernel(Rows x, Index r, int pass, Shares shares) {
  if (is_over(shares, pass)) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, number = static_cast<int>(threadIdx.x) / kWarp;
  const Columns mine = my_columns(x);
  for (Index other = number; other <= r; other += kWideWarps) {
    double sum = 0;
#pragma unroll 4
    for (Index c = mine.begin + lane; c < mine.end; c += kWarp)
      sum = fma(static_cast<double>(x.row(r)[c]), static_cast<double>(x.row(other)[c]), sum);
    sum = warp_sum(sum);
    if (lane == 0) shares.partial[blockIdx.x * x.rows + other] = sum;
  }
}

/// In order of the blocks within a lane, then over the lanes; the same bits in every lane and block.
__device__ double sum_over_blocks(const double* partial, Index stride) {
  double sum = 0;
  for (unsigned block = threadIdx.x % kWarp; block < gridDim.x; block += kWarp)
    sum += partial[block * stride];
  return warp_sum(sum);
}

constexpr int kMostRows = 1024;

__global__ void __launch_bounds__(kWideThreads) subtract_kernel(Rows x, Index r, int pass, Shares shares) {
  __shared__ double share[kMostRows];
  __shared__ WideScratch scratch;
  if (is_over(shares, pass)) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, number = static_cast<int>(threadIdx.x) / kWarp;
  for (Index other = number; other <= r; other += kWideWarps) {
    const double sum = sum_over_blocks(shares.partial + other, x.rows);
    if (lane == 0) share[other] = sum;
  }
  __syncthreads();
  if (blockIdx.x == 0 && threadIdx.x == 0) *shares.before = sqrt(share[r]);
  const Columns mine = my_columns(x);
  double sum = 0;
  for (Index c = mine.begin + threadIdx.x; c < mine.end; c += blockDim.x) {
    double value = static_cast<double>(x.row(r)[c]);
#pragma unroll 4
    for (Index other = 0; other < r; ++other)
      value = fma(-share[other], static_cast<double>(x.row(other)[c]), value);
    const float rounded = static_cast<float>(value);
    x.row(r)[c] = rounded;
    sum = fma(static_cast<double>(rounded), static_cast<double>(rounded), sum);
  }
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) shares.squares[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kWideThreads) scale_kernel(Rows x, Index r, int pass, Shares shares) {
  const bool is_skipped = is_over(shares, pass);
  if (is_skipped && blockIdx.x == 0 && threadIdx.x == 0) shares.failed[pass] = 1;
  if (is_skipped) return;
  const double length = sqrt(sum_over_blocks(shares.squares, 1));
  const bool is_found = is_direction(*shares.before, length);
  if (blockIdx.x == 0 && threadIdx.x == 0) shares.failed[pass] = is_found ? 0 : 1;
  if (!is_found) return;
  const Columns mine = my_columns(x);
  for (Index c = mine.begin + threadIdx.x; c < mine.end; c += blockDim.x)
    x.row(r)[c] = static_cast<float>(static_cast<double>(x.row(r)[c]) / length);
}

/// One block.
__global__ void __launch_bounds__(kBlockThreads) replace_kernel(Rows x, Index r, Shares shares) {
  __shared__ WideScratch scratch;
  if (shares.failed[1] != 0) replace(x, r, scratch);
}

/// Columns of a block at least; blocks at most.
constexpr Index kWideColumns = 1024, kMostBlocks = 128;

void orthonormalise_wide(const Rows& x, const Scratch& scratch, cudaStream_t stream) {
  const Index blocks = std::min(kMostBlocks, (x.cols + kWideColumns - 1) / kWideColumns);
  Shares shares{};
  shares.partial = scratch.as<double>();
  shares.squares = shares.partial + blocks * x.rows;
  shares.before = shares.squares + blocks;
  shares.failed = reinterpret_cast<int*>(shares.before + 1);
  const Grid grid{static_cast<unsigned>(blocks), kWideThreads};
  for (Index r = 0; r < x.rows; ++r) {
    for (int pass = 0; pass < 2; ++pass) {
      launch("orthonormalise_shares", shares_kernel, grid, stream, x, r, pass, shares);
      launch("orthonormalise_subtract", subtract_kernel, grid, stream, x, r, pass, shares);
      launch("orthonormalise_scale", scale_kernel, grid, stream, x, r, pass, shares);
    }
    launch("orthonormalise_replace", replace_kernel, {1, kBlockThreads}, stream, x, r, shares);
  }
}

// --- the largest elements

__device__ __forceinline__ unsigned magnitude(float value) { return __float_as_uint(value) & 0x7fffffffu; }

/// In scratch memory. x is cut into pieces, a block each.
constexpr int kMostPieces = 1024;
struct Selection {
  unsigned long long counts[kDigits][kMostBins];  ///< elements of each digit among those with the higher ones
  unsigned threshold[kDigits + 1];                ///< its first digits, after as many picks
  unsigned long long equal[kDigits + 1];          ///< elements to take that have these digits
  unsigned long long above_before[kMostPieces];   ///< above the threshold: of a piece, then of all before it
  unsigned long long equal_before[kMostPieces];   ///< likewise with the threshold's magnitude
};
static_assert(sizeof(Selection) <= kScratchBytes);

constexpr int kThreads = 256;
constexpr Index kTile = kThreads * kOctet;

__global__ void __launch_bounds__(kThreads) begin_selection_kernel(Selection* s, unsigned long long wanted) {
  const int i = static_cast<int>(thread_number());
  if (i < kDigits * kMostBins) s->counts[i / kMostBins][i % kMostBins] = 0;
  if (i != 0) return;
  s->threshold[0] = 0;
  s->equal[0] = wanted;
}

/// Calls f(index, value) for the elements of the block's piece, tile by tile, thread after thread; all
/// threads call end_tile() together.
template <class F, class EndTile>
__device__ void for_piece(const float* x, Index size, Index piece, bool packed, const F& f,
                          const EndTile& end_tile) {
  const Index begin = static_cast<Index>(blockIdx.x) * piece;
  const Index end = begin + piece < size ? begin + piece : size;
  for (Index tile = begin; tile < end; tile += kTile) {
    const Index first = tile + static_cast<Index>(threadIdx.x) * kOctet;
    f(first, end - first, load_octet(x + first, end - first, packed));
    end_tile();
  }
}

__global__ void __launch_bounds__(kThreads)
    count_digits_kernel(const float* x, Index size, Index piece, bool packed, int digit, Selection* s) {
  __shared__ unsigned counts[kMostBins];
  const int shift = shift_of(digit), bins = bins_of(digit);
  for (int bin = static_cast<int>(threadIdx.x); bin < bins; bin += kThreads) counts[bin] = 0;
  __syncthreads();
  const unsigned above = s->threshold[digit];
  for_piece(
      x, size, piece, packed,
      [&](Index, Index left, const Octet& octet) {
#pragma unroll
        for (int i = 0; i < kOctet; ++i) {
          const unsigned digits = magnitude(octet.at[i]) >> shift, of_bins = static_cast<unsigned>(bins);
          if (i < left && (digit == 0 || digits / of_bins == above)) atomicAdd(&counts[digits % of_bins], 1u);
        }
      },
      [] {});
  __syncthreads();
  for (int bin = static_cast<int>(threadIdx.x); bin < bins; bin += kThreads)
    if (counts[bin] != 0) atomicAdd(&s->counts[digit][bin], static_cast<unsigned long long>(counts[bin]));
}

/// One block: the digit in which the last element to take lies, from the highest bin downward.
constexpr int kPickThreads = 1024;
__global__ void __launch_bounds__(kPickThreads) pick_digit_kernel(int digit, Selection* s) {
  __shared__ ScanScratch scratch;
  const int bins = bins_of(digit);
  const unsigned long long* const counts = s->counts[digit];
  find_bin(
      bins, s->equal[digit], [=](int bin) { return counts[bin]; }, scratch,
      [=](int bin, unsigned long long left) {
        s->threshold[digit + 1] =
            s->threshold[digit] * static_cast<unsigned>(bins) + static_cast<unsigned>(bin);
        s->equal[digit + 1] = left;
      });
}

__global__ void __launch_bounds__(kThreads)
    count_taken_kernel(const float* x, Index size, Index piece, bool packed, Selection* s) {
  __shared__ ScanScratch scratch;
  const unsigned threshold = s->threshold[kDigits];
  unsigned above = 0, equal = 0;
  for_piece(
      x, size, piece, packed,
      [&](Index, Index left, const Octet& octet) {
#pragma unroll
        for (int i = 0; i < kOctet; ++i) {
          if (i >= left) continue;
          above += magnitude(octet.at[i]) > threshold ? 1u : 0u;
          equal += magnitude(octet.at[i]) == threshold ? 1u : 0u;
        }
      },
      [] {});
  unsigned long long all_above = 0, all_equal = 0;
  block_scan(above, scratch, all_above);
  block_scan(equal, scratch, all_equal);
  if (threadIdx.x != 0) return;
  s->above_before[blockIdx.x] = all_above;
  s->equal_before[blockIdx.x] = all_equal;
}

__global__ void __launch_bounds__(kMostPieces) scan_pieces_kernel(int pieces, Selection* s) {
  __shared__ ScanScratch scratch;
  const int i = static_cast<int>(threadIdx.x);
  unsigned long long total = 0;
  const unsigned long long above = block_scan(i < pieces ? s->above_before[i] : 0, scratch, total);
  const unsigned long long equal = block_scan(i < pieces ? s->equal_before[i] : 0, scratch, total);
  if (i >= pieces) return;
  s->above_before[i] = above;
  s->equal_before[i] = equal;
}

/// Element i's place: the number of those above the threshold before it, and of those equal to it that are
/// taken.
__global__ void __launch_bounds__(kThreads)
    take_kernel(float* x, Index size, Index piece, bool packed, const Selection* s, float* values,
                std::uint32_t* indices) {
  __shared__ unsigned of_warp[kThreads / kWarp];
  const unsigned threshold = s->threshold[kDigits];
  const unsigned long long most_equal = s->equal[kDigits];
  unsigned long long above_before = s->above_before[blockIdx.x], equal_before = s->equal_before[blockIdx.x];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, number = static_cast<int>(threadIdx.x) / kWarp;
  for_piece(
      x, size, piece, packed,
      [&](Index first, Index left, const Octet& octet) {
        // Two counts of a tile in one word: above the threshold, and 16 bits higher, equal to it.
        unsigned mine = 0;
#pragma unroll
        for (int i = 0; i < kOctet; ++i) {
          if (i >= left) continue;
          mine += magnitude(octet.at[i]) > threshold ? 1u : 0u;
          mine += magnitude(octet.at[i]) == threshold ? 0x10000u : 0u;
        }
        const unsigned inside = warp_scan(mine, lane);
        if (lane == kWarp - 1) of_warp[number] = inside;
        __syncthreads();
        unsigned before = inside - mine, all = 0;
        for (int w = 0; w < kThreads / kWarp; ++w) {
          if (w < number) before += of_warp[w];
          all += of_warp[w];
        }
        unsigned long long above = above_before + (before & 0xffffu), equal = equal_before + (before >> 16);
#pragma unroll
        for (int i = 0; i < kOctet; ++i) {
          if (i >= left) continue;
          const unsigned bits = magnitude(octet.at[i]);
          if (bits > threshold || (bits == threshold && equal < most_equal)) {
            const unsigned long long place = above + (equal < most_equal ? equal : most_equal);
            indices[place] = static_cast<std::uint32_t>(first + i);
            values[place] = octet.at[i];
            x[first + i] = 0.0f;
          }
          above += bits > threshold ? 1u : 0u;
          equal += bits == threshold ? 1u : 0u;
        }
        above_before += all & 0xffffu;
        equal_before += all >> 16;
      },
      [] { __syncthreads(); });
}

// --- sparse sums

/// An index outside is a defect of the caller that the cpu device reports; here it must not destroy memory.
__global__ void __launch_bounds__(kThreads)
    scatter_add_kernel(float* y, Index size, const float* values, const std::uint32_t* indices, Index count) {
  const Index i = thread_number();
  if (i >= count) return;
  const auto index = static_cast<Index>(indices[i]);
  if (index < size) y[index] += values[i];
}

}  // namespace

void orthonormalise_rows(Matrix x, const Scratch& scratch, cudaStream_t stream) {
  constexpr Index kWideWork = Index{1} << 20;  // products of elements: about 100 us of one block
  const Rows rows{static_cast<float*>(x.data), x.rows, x.cols, x.stride};
  if (x.rows == 0 || x.cols == 0) return;
  if (x.rows < x.cols && x.rows <= kMostRows && x.rows * x.rows * x.cols > kWideWork)
    orthonormalise_wide(rows, scratch, stream);
  else
    launch("orthonormalise", orthonormalise_kernel, {1, kBlockThreads}, stream, rows);
}

void take_largest(Vector x, Vector values, std::span<std::uint32_t> indices, const Scratch& scratch,
                  cudaStream_t stream) {
  if (indices.empty()) return;
  auto* const data = static_cast<float*>(x.data);
  auto* const s = scratch.as<Selection>();
  const bool packed = is_packed(data);
  const Index tiles = (x.size + kTile - 1) / kTile;
  constexpr Index kLeastTiles = 2;
  const Index piece = std::max(kLeastTiles, (tiles + kMostPieces - 1) / kMostPieces) * kTile;
  const Grid grid{blocks_for(x.size, piece), kThreads};
  launch("take_largest_begin", begin_selection_kernel, {blocks_for(kDigits * kMostBins, kThreads), kThreads},
         stream, s, static_cast<unsigned long long>(indices.size()));
  for (int digit = 0; digit < kDigits; ++digit) {
    launch("take_largest_count", count_digits_kernel, grid, stream, data, x.size, piece, packed, digit, s);
    launch("take_largest_pick", pick_digit_kernel, {1, kPickThreads}, stream, digit, s);
  }
  launch("take_largest_pieces", count_taken_kernel, grid, stream, data, x.size, piece, packed, s);
  launch("take_largest_scan", scan_pieces_kernel, {1, kMostPieces}, stream, static_cast<int>(grid.blocks.x),
         s);
  launch("take_largest", take_kernel, grid, stream, data, x.size, piece, packed, s,
         static_cast<float*>(values.data), indices.data());
}

void scatter_add(Vector y, ConstVector values, std::span<const std::uint32_t> indices, cudaStream_t stream) {
  const auto count = static_cast<Index>(indices.size());
  launch("scatter_add", scatter_add_kernel, {blocks_for(count, kThreads), kThreads}, stream,
         static_cast<float*>(y.data), y.size, static_cast<const float*>(values.data), indices.data(), count);
}

}  // namespace cartan::kernels
