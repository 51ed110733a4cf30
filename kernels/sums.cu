// Sums in an order of their own: over blocks of 1024 elements, along the canonical tree, over parts, over the
// rows of each sequence; and the search for numbers that are not finite. Bits equal the cpu device's, except
// for the column sums, which are cut along the rows here.
//
// All of them only move memory; 85 to 90 % of its peak is expected for more than some 10 MB:
//   square_sums     reads 4 bytes an element; a product and a sum in fp64
//   tree_sum        reads 4 bytes a value and element, writes 4
//   sum_parts       reads the parts and the residual, writes the result, each once
//   fold_columns    reads x once; its partial sums are 1/32 of that or less
//   find_nonfinite  reads x once
// Those that work on eight elements a thread read fp32 in two requests of a warp, each of which takes half of
// 32 sectors; the second finds them in the L1 cache.
#include "sums.hpp"

#include <algorithm>
#include <array>

#include "fold_pieces.cuh"
#include "octet.cuh"

namespace cartan::kernels {
namespace {

constexpr int kThreads = 256;

unsigned blocks_of_threads(Index threads) { return blocks_for(threads, kThreads); }

__device__ __forceinline__ Index thread_number() {
  return static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x;
}

// --- sums of squares

/// Each sum is the work of 16 threads: running sums of every 16th element, added up pairwise, as the cpu
/// device does it. (Squares of floats are exact in fp64: fusing changes nothing.)
constexpr int kSquareLanes = 16;

__global__ void __launch_bounds__(kThreads)
    square_sums_kernel(const float* x, Index size, double* sums, Index count) {
  const Index number = thread_number() / kSquareLanes;
  const int lane = static_cast<int>(threadIdx.x) % kSquareLanes;
  const Index first = number * device::kSumBlock;
  const Index end = first + device::kSumBlock < size ? first + device::kSumBlock : size;
  double sum = 0;
#pragma unroll 8
  for (Index i = first + lane; i < end; i += kSquareLanes) {
    const double value = static_cast<double>(x[i]);
    sum = fma(value, value, sum);
  }
  for (int distance = kSquareLanes / 2; distance > 0; distance /= 2)
    sum += __shfl_xor_sync(kAllLanes, sum, distance);
  if (lane == 0 && number < count) sums[number] = sum;
}

// --- sums along the canonical tree

/// What tree_sum adds, small enough for a kernel's parameters.
struct TreeValues {
  static constexpr int kMost = 384;
  const float* data[kMost];
  unsigned char merges[kMost];

  __device__ const float* value(int i) const { return data[i]; }
  __device__ int merges_of(int i) const { return merges[i]; }
};

/// Longer lists lie in scratch memory.
struct TreeList {
  const float* const* data;
  const unsigned short* merges;

  __device__ const float* value(int i) const { return data[i]; }
  __device__ int merges_of(int i) const { return merges[i]; }
};

constexpr int kTreeThreads = 128;
constexpr int kTreeWidth = 4;   ///< elements of a thread
constexpr int kTreeAhead = 4;   ///< values that a thread reads ahead
constexpr int kTreeDepth = 48;  ///< 96 KiB of shared memory

/// Elements are independent, each thread keeps the stacks of its own in shared memory: out may be any of the
/// values.
template <class List>
__global__ void __launch_bounds__(kTreeThreads)
    tree_sum_kernel(const __grid_constant__ List list, int count, float* out, Index size, bool packed) {
  const Index first = thread_number() * kTreeWidth, left = size - first;
  if (left <= 0) return;
  packed = packed && left >= kTreeWidth;
  auto* const stack = warp::dynamic_shared<Pack<float>>() + threadIdx.x;
  int depth = 0;
  Pack<float> top{};  // the newest value; those below it are in shared memory
  for (int begin = 0; begin < count; begin += kTreeAhead) {
    Pack<float> values[kTreeAhead];
#pragma unroll
    for (int i = 0; i < kTreeAhead; ++i) {
      if (begin + i >= count) continue;
      const float* const from = list.value(begin + i) + first;
      if (packed) {
        values[i] = load_pack(from);
      } else {
#pragma unroll
        for (int j = 0; j < kTreeWidth; ++j) values[i].at[j] = j < left ? from[j] : 0.0f;
      }
    }
#pragma unroll
    for (int i = 0; i < kTreeAhead; ++i) {
      if (begin + i >= count) continue;
      Pack<float> value = values[i];
      for (int merges = list.merges_of(begin + i); merges > 0; --merges) {
#pragma unroll
        for (int j = 0; j < kTreeWidth; ++j) value.at[j] = top.at[j] + value.at[j];
        if (--depth > 0) top = load_pack(stack[(depth - 1) * kTreeThreads].at);
      }
      if (depth > 0) store_pack(stack[(depth - 1) * kTreeThreads].at, top);
      top = value;
      ++depth;
    }
  }
  if (packed) {
    store_pack(out + first, top);
  } else {
#pragma unroll
    for (int j = 0; j < kTreeWidth; ++j)
      if (j < left) out[first + j] = top.at[j];
  }
}

__global__ void __launch_bounds__(TreeValues::kMost)
    tree_list_kernel(const __grid_constant__ TreeValues values, int count, const float** data,
                     unsigned short* merges) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= count) return;
  data[i] = values.data[i];
  merges[i] = values.merges[i];
}

/// Deepest stack of the values below the newest one.
int deepest(std::span<const int> merges) {
  int depth = 0, most = 0;
  for (const int m : merges) {
    depth += 1 - m;
    most = std::max(most, depth - 1);
  }
  return most;
}

TreeValues tree_values(std::span<const float* const> values, std::span<const int> merges) {
  TreeValues part{};
  std::copy(values.begin(), values.end(), part.data);
  std::copy(merges.begin(), merges.end(), part.merges);
  return part;
}

// --- sums over parts

template <class Part, class Out>
__global__ void __launch_bounds__(kThreads)
    sum_parts_kernel(const Part* stacked, Index stride, Index step, Index parts, const Out* residual,
                     Index residual_stride, Out* out, Index out_stride, Index rows, Index cols,
                     bool packed_parts, bool packed_out) {
  const Index width = (cols + kOctet - 1) / kOctet, number = thread_number(), row = number / width;
  if (row >= rows) return;
  const Index col = (number - row * width) * kOctet, left = cols - col;
  stacked += row * stride + col;
  Octet sum = load_octet(stacked, left, packed_parts);
#pragma unroll 4
  for (Index part = 1; part < parts; ++part) {
    const Octet next = load_octet(stacked + part * step, left, packed_parts);
#pragma unroll
    for (int i = 0; i < kOctet; ++i) sum.at[i] += next.at[i];
  }
  if (residual != nullptr) {
    const Octet before = load_octet(residual + row * residual_stride + col, left, packed_out);
#pragma unroll
    for (int i = 0; i < kOctet; ++i) sum.at[i] = before.at[i] + sum.at[i];
  }
  store_octet(out + row * out_stride + col, sum, left, packed_out);
}

// --- sums over the rows of a sequence

constexpr Index kSmallestPiece = 32;  ///< rows

/// sums[piece, col] = sum over the rows of the piece, in order, a piece and eight columns a thread; sums has
/// `width` columns, a multiple of 8.
template <class T>
__global__ void __launch_bounds__(kThreads)
    column_sums_kernel(const T* x, Index stride, Index cols, bool packed, Pieces pieces, Index total,
                       float* sums, Index width) {
  const Index number = thread_number(), piece = number / (width / kOctet);
  if (piece >= total) return;
  const Index col = number % (width / kOctet) * kOctet, left = cols - col;
  const Index sequence = piece / pieces.count, begin = piece % pieces.count * pieces.size;
  const Index end = begin + pieces.size < pieces.rows ? begin + pieces.size : pieces.rows;
  x += sequence * pieces.rows * stride + col;
  Octet sum{};
#pragma unroll 4
  for (Index row = begin; row < end; ++row) {
    const Octet next = load_octet(x + row * stride, left, packed);
#pragma unroll
    for (int i = 0; i < kOctet; ++i) sum.at[i] += next.at[i];
  }
  store_octet(sums + piece * width + col, sum, kOctet, true);
}

// --- what is not finite

template <class T>
__global__ void __launch_bounds__(kThreads)
    find_nonfinite_kernel(const T* x, Index rows, Index cols, Index stride, bool packed, std::int32_t* flag) {
  const Index width = (cols + kOctet - 1) / kOctet, number = thread_number(), row = number / width;
  if (row >= rows) return;
  const Index col = (number - row * width) * kOctet;
  const Octet values = load_octet(x + row * stride + col, cols - col, packed);
  bool bad = false;
#pragma unroll
  for (int i = 0; i < kOctet; ++i) bad = bad || !(fabsf(values.at[i]) < INFINITY);
  if (bad) atomicOr(flag, 1);
}

}  // namespace

void square_sums(ConstVector x, std::span<double> sums, cudaStream_t stream) {
  const auto count = static_cast<Index>(sums.size());
  launch("square_sums", square_sums_kernel, {blocks_of_threads(count * kSquareLanes), kThreads}, stream,
         static_cast<const float*>(x.data), x.size, sums.data(), count);
}

void tree_sum(std::span<const float* const> values, std::span<const int> merges, float* out, Index count,
              const Scratch& scratch, cudaStream_t stream) {
  constexpr std::size_t kMost = TreeValues::kMost, kEntry = sizeof(float*) + sizeof(short);
  const int depth = deepest(merges);
  const auto most = static_cast<Index>(scratch.bytes / kEntry), given = static_cast<Index>(values.size());
  if (depth > kTreeDepth) refuse("tree_sum", "values on the stack", depth, kTreeDepth);
  if (given > most) refuse("tree_sum", "values", given, most);
  const auto is_aligned = [](const float* data) { return is_packed(data); };
  const bool packed = is_aligned(out) && std::all_of(values.begin(), values.end(), is_aligned);
  const Grid grid{blocks_for(count, kTreeThreads * kTreeWidth), kTreeThreads,
                  static_cast<unsigned>(depth) * kTreeThreads * unsigned{sizeof(Pack<float>)}};
  const auto total = static_cast<int>(values.size());
  if (values.size() <= kMost) {
    launch("tree_sum", tree_sum_kernel<TreeValues>, grid, stream, tree_values(values, merges), total, out,
           count, packed);
    return;
  }
  auto* const data = scratch.as<const float*>();
  auto* const counts = reinterpret_cast<unsigned short*>(data + values.size());
  for (std::size_t begin = 0; begin < values.size(); begin += kMost) {
    const std::size_t part = std::min(kMost, values.size() - begin);
    launch("tree_list", tree_list_kernel, {1, TreeValues::kMost}, stream,
           tree_values(values.subspan(begin, part), merges.subspan(begin, part)), static_cast<int>(part),
           data + begin, counts + begin);
  }
  launch("tree_sum", tree_sum_kernel<TreeList>, grid, stream, TreeList{data, counts}, total, out, count,
         packed);
}

void sum_parts(ConstMatrix stacked, Index parts, ConstMatrix residual, Matrix out, cudaStream_t stream) {
  dispatch(stacked.dtype, [&](auto part_zero) {
    dispatch(out.dtype, [&](auto out_zero) {
      using Part = decltype(part_zero);
      using Out = decltype(out_zero);
      const auto* const from = static_cast<const Part*>(stacked.data);
      const auto* const before = static_cast<const Out*>(residual.data);
      auto* const to = static_cast<Out*>(out.data);
      launch("sum_parts", sum_parts_kernel<Part, Out>,
             {blocks_of_threads(out.rows * octets(out.cols)), kThreads}, stream, from, stacked.stride,
             out.rows * stacked.stride, parts, before, residual.stride, to, out.stride, out.rows, out.cols,
             is_packed(from, stacked.stride),
             is_packed(to, out.stride) && is_packed(before, residual.stride));
    });
  });
}

void fold_columns(ConstMatrix x, SequenceShape shape, const GradientView& sums, const Scratch& scratch,
                  cudaStream_t stream) {
  const Fold fold = make_fold(sums);
  const Pieces pieces = Pieces::of(shape.length, kSmallestPiece);
  const Index total = shape.sequences * pieces.count;
  // As many columns at a time as the scratch memory has room for.
  const Index room = static_cast<Index>(scratch.bytes / sizeof(float)) / std::max<Index>(1, total);
  const Index most = room / kOctet * kOctet;
  for (Index first = 0; first < x.cols && fold.leaves > 0; first += most) {
    const Index cols = std::min(most, x.cols - first), width = octets(cols) * kOctet;
    dispatch(x.dtype, [&](auto zero) {
      using T = decltype(zero);
      const auto* const from = static_cast<const T*>(x.data) + first;
      launch("column_sums", column_sums_kernel<T>, {blocks_of_threads(total * width / kOctet), kThreads},
             stream, from, x.stride, cols, is_packed(from, x.stride), pieces, total, scratch.as<float>(),
             width);
    });
    fold_pieces("column_sums_fold", scratch.as<float>(), pieces.count, width, cols, first, fold, stream);
  }
}

void find_nonfinite(ConstMatrix x, std::int32_t* flag, cudaStream_t stream) {
  dispatch(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto* const data = static_cast<const T*>(x.data);
    launch("find_nonfinite", find_nonfinite_kernel<T>, {blocks_of_threads(x.rows * octets(x.cols)), kThreads},
           stream, data, x.rows, x.cols, x.stride, is_packed(data, x.stride), flag);
  });
}

}  // namespace cartan::kernels
