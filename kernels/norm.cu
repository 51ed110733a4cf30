// RMS normalization of groups of columns: y = x * inv_rms * weight, inv_rms = 1 / sqrt(mean(x^2) + eps).
//
// A group belongs to a team of threads: 8 or 16 lanes for the heads of a query (64 or 128 channels in 16
// bits), a warp up to four packs a lane, and else a block of 256. A team reads its group twice, the second
// time from the L1 cache; nothing is staged, so a group may be as wide as it likes.
//
// Bytes for each element of 16 bits: forward 2 read and 2 written; dx 4 read (6 where it accumulates) and 2
// written; dweight 4 read. 4, 10 and 3 FLOPs. Memory bound: 80 to 90 % of the peak bandwidth for groups of
// 1024 and more, about 70 % for heads, where the latency of two passes shows.
//
// dweight has no parallelism but over rows: pieces of a sequence's rows (of its heads, too) are summed by one
// block each into scratch memory, then folded (fold_pieces.cuh). A piece's sums leave in requests of up to
// eight times the sectors (a seventh more than x and dy alone with 64 rows a piece): shared memory keeps them
// in an order without bank conflicts.
// Source: Zhang and Sennrich 2019, arXiv:1910.07467.
#include "norm.hpp"

#include "fold_pieces.cuh"
#include "rows.cuh"

namespace cartan::kernels {
namespace {

/// kTeam threads for each group; teams of a block's size share shared memory. Teams past the last group stay
/// for the exchanges, with nothing to do.
template <int kTeam>
struct Team {
  Index group;
  int lane;
  __device__ Team()
      : group(static_cast<Index>(blockIdx.x) * (kRowThreads / kTeam) + static_cast<int>(threadIdx.x) / kTeam),
        lane(static_cast<int>(threadIdx.x) % kTeam) {}

  /// To every thread of the team.
  __device__ float sum(float x) const {
    if constexpr (kTeam == kRowThreads) {
      __shared__ BlockScratch scratch;
      return block_sum(x, scratch);
    } else {
      for (int distance = kTeam / 2; distance > 0; distance /= 2)
        x += __shfl_xor_sync(kAllLanes, x, distance);
      return x;
    }
  }
};

// y may be x: a thread writes what only it reads.
template <bool kPacked, int kTeam, class T>
__global__ void __launch_bounds__(kRowThreads)
    rmsnorm_forward_kernel(const T* x, Index x_stride, const T* weight, float eps, T* y, Index y_stride,
                           float* inv_rms, Index rows, int groups, int width) {
  constexpr int kCount = kPack<T>;
  const Team<kTeam> team;
  const bool inside = team.group < rows * groups;
  const Index row = team.group / groups, start = team.group % groups * width;
  const int end = inside ? width : 0;
  const T* const in = x + row * x_stride + start;
  float sum = 0.0f, value[kCount];
  for (int i = team.lane * kCount; i < end; i += kTeam * kCount) {
    load_chunk<kPacked>(in, i, width, value);
#pragma unroll
    for (int j = 0; j < kCount; ++j) sum = fmaf(value[j], value[j], sum);
  }
  const float mean = team.sum(sum) / static_cast<float>(width);
  const float inv = 1.0f / sqrtf(mean + eps);
  if (inside && inv_rms != nullptr && team.lane == 0) inv_rms[team.group] = inv;
  T* const out = y + row * y_stride + start;
  float scale[kCount];
  for (int i = team.lane * kCount; i < end; i += kTeam * kCount) {
    load_chunk<kPacked>(in, i, width, value);
    load_chunk<kPacked>(weight, i, width, scale);
#pragma unroll
    for (int j = 0; j < kCount; ++j) value[j] = value[j] * inv * scale[j];
    store_chunk<kPacked>(out, i, width, value);
  }
}

// dx may be dy.
template <bool kPacked, int kTeam, class T>
__global__ void __launch_bounds__(kRowThreads)
    rmsnorm_backward_kernel(const T* x, Index x_stride, const T* weight, const float* inv_rms, const T* dy,
                            Index dy_stride, T* dx, Index dx_stride, bool accumulate, Index rows, int groups,
                            int width) {
  constexpr int kCount = kPack<T>;
  const Team<kTeam> team;
  const bool inside = team.group < rows * groups;
  const Index row = team.group / groups, start = team.group % groups * width;
  const int end = inside ? width : 0;
  const T* const in = x + row * x_stride + start;
  const T* const d = dy + row * dy_stride + start;
  float sum = 0.0f, value[kCount], straight[kCount], scale[kCount];
  for (int i = team.lane * kCount; i < end; i += kTeam * kCount) {
    load_chunk<kPacked>(in, i, width, value);
    load_chunk<kPacked>(d, i, width, straight);
    load_chunk<kPacked>(weight, i, width, scale);
#pragma unroll
    for (int j = 0; j < kCount; ++j) sum = fmaf(straight[j] * scale[j], value[j], sum);
  }
  const float mean = team.sum(sum) / static_cast<float>(width);
  const float inv = inside ? inv_rms[team.group] : 0.0f;
  const float pull = mean * inv * inv;
  T* const out = dx + row * dx_stride + start;
  for (int i = team.lane * kCount; i < end; i += kTeam * kCount) {
    load_chunk<kPacked>(in, i, width, value);
    load_chunk<kPacked>(d, i, width, straight);
    load_chunk<kPacked>(weight, i, width, scale);
#pragma unroll
    for (int j = 0; j < kCount; ++j) value[j] = inv * (straight[j] * scale[j] - value[j] * pull);
    if (accumulate) {
      load_chunk<kPacked>(out, i, width, scale);
#pragma unroll
      for (int j = 0; j < kCount; ++j) value[j] = scale[j] + value[j];
    }
    store_chunk<kPacked>(out, i, width, value);
  }
}

/// Columns that a block of the sum over rows takes with so many threads side by side.
template <class T, int kLanes>
inline constexpr int kBlockColumns = kLanes* kPack<T>;

// Block (piece, columns, sequence): kLanes threads side by side, each with one pack of columns; the others
// take the next rows. A row here is a group: row r of the sequence is group r % groups of token r / groups.
template <bool kPacked, int kLanes, class T>
__global__ void __launch_bounds__(kRowThreads)
    rmsnorm_weight_kernel(const T* x, Index x_stride, const T* dy, Index dy_stride, const float* inv_rms,
                          Pieces pieces, int groups, Index first_column, Index columns, Index width,
                          float* sums) {
  constexpr int kCount = kPack<T>, kDeep = kRowThreads / kLanes;
  // Element j of a pack lies kLanes * j further on, and rows are kLanes longer than they need be: no two
  // threads of a warp meet in a bank.
  __shared__ float of_row[kDeep][kBlockColumns<T, kLanes> + kLanes];
  const int side = static_cast<int>(threadIdx.x) % kLanes, deep = static_cast<int>(threadIdx.x) / kLanes;
  const Index block_column = static_cast<Index>(blockIdx.y) * kBlockColumns<T, kLanes>;
  const Index column = first_column + block_column + side * kCount;
  const Index sequence = blockIdx.z, begin = static_cast<Index>(blockIdx.x) * pieces.size;
  const Index end = min(pieces.rows, begin + pieces.size);
  const Index first_token = sequence * (pieces.rows / groups);
  float sum[kCount] = {}, value[kCount], d[kCount];
  if (column < width) {
    for (Index r = begin + deep; r < end; r += kDeep) {
      const auto number = static_cast<unsigned>(r);
      const unsigned token_here = number / static_cast<unsigned>(groups);
      const Index token = first_token + token_here;
      const Index start = static_cast<Index>(number - token_here * static_cast<unsigned>(groups)) * width;
      const float inv = inv_rms[sequence * pieces.rows + r];
      load_chunk<kPacked>(x + token * x_stride + start, column, width, value);
      load_chunk<kPacked>(dy + token * dy_stride + start, column, width, d);
#pragma unroll
      for (int j = 0; j < kCount; ++j) sum[j] = fmaf(d[j] * value[j], inv, sum[j]);
    }
  }
#pragma unroll
  for (int j = 0; j < kCount; ++j) of_row[deep][j * kLanes + side] = sum[j];
  __syncthreads();
  float* const out = sums + (sequence * pieces.count + blockIdx.x) * columns + block_column;
  const Index columns_here = min(static_cast<Index>(kBlockColumns<T, kLanes>), columns - block_column);
  for (int place = static_cast<int>(threadIdx.x); place < kBlockColumns<T, kLanes>; place += kRowThreads) {
    const int c = place % kLanes * kCount + place / kLanes;
    float total = of_row[0][place];
    for (int i = 1; i < kDeep; ++i) total += of_row[i][place];
    if (c < columns_here) out[c] = total;
  }
}

/// Calls f with the number of threads that a group of this width gets, at compile time.
template <class T, class F>
void with_team(Index width, const F& f) {
  const Index packs = (width + kPack<T> - 1) / kPack<T>;
  if (packs <= 8) return f(std::integral_constant<int, 8>{});
  if (packs <= 16) return f(std::integral_constant<int, 16>{});
  if (packs <= 4 * kWarp) return f(std::integral_constant<int, kWarp>{});
  f(std::integral_constant<int, kRowThreads>{});
}

template <class T>
void weight_gradient(ConstMatrix x, ConstVector inv_rms, ConstMatrix dy, SequenceShape shape, Index width,
                     bool packed_rows, const GradientView& dweight, const Scratch& scratch,
                     cudaStream_t stream) {
  const Fold fold = make_fold(dweight);
  if (fold.leaves == 0) return;
  const Index groups = x.cols / width;
  constexpr Index kSmallestPiece = 64;
  const Pieces pieces = Pieces::of(shape.length * groups, kSmallestPiece);
  const Index packs = (width + kPack<T> - 1) / kPack<T>;
  auto* const sums = scratch.as<float>();
  // As many columns at a time as the sums of all pieces leave room for.
  const Index room = static_cast<Index>(scratch.bytes / sizeof(float)) /
                     std::max(Index{1}, shape.sequences * pieces.count) / kPack<T> * kPack<T>;
  const auto sum_columns = [&](auto packed, auto lanes, Index first, Index columns) {
    launch("rmsnorm_weight_gradient", rmsnorm_weight_kernel<packed(), lanes(), T>,
           {dim3(static_cast<unsigned>(pieces.count), blocks_for(columns, kBlockColumns<T, lanes()>),
                 static_cast<unsigned>(shape.sequences)),
            kRowThreads},
           stream, static_cast<const T*>(x.data), x.stride, static_cast<const T*>(dy.data), dy.stride,
           static_cast<const float*>(inv_rms.data), pieces, static_cast<int>(groups), first, columns, width,
           sums);
  };
  for (Index first = 0; first < width; first += room) {
    const Index columns = std::min(room, width - first);
    with_bool(packed_rows, [&](auto packed) {
      if (packs <= 8) {
        sum_columns(packed, std::integral_constant<int, 8>{}, first, columns);
      } else if (packs <= 16) {
        sum_columns(packed, std::integral_constant<int, 16>{}, first, columns);
      } else {
        sum_columns(packed, std::integral_constant<int, kWarp>{}, first, columns);
      }
    });
    fold_pieces("rmsnorm_weight_fold", sums, pieces.count, columns, columns, first, fold, stream);
  }
}

}  // namespace

void rmsnorm_forward(ConstMatrix x, ConstVector weight, float eps, Matrix y, Vector inv_rms,
                     cudaStream_t stream) {
  const Index width = weight.size, groups = x.cols / width;
  dispatch(x.dtype, [&](auto type) {
    using T = decltype(type);
    const auto* const in = static_cast<const T*>(x.data);
    const auto* const scale = static_cast<const T*>(weight.data);
    auto* const out = static_cast<T*>(y.data);
    const bool all_packed = is_packed(in, x.stride) && is_packed(scale, 0) && is_packed(out, y.stride) &&
                            (groups == 1 || is_packed(in, width));
    with_team<T>(width, [&](auto team) {
      with_bool(all_packed, [&](auto packed) {
        launch("rmsnorm_forward", rmsnorm_forward_kernel<packed(), team(), T>,
               {blocks_for(x.rows * groups, kRowThreads / team()), kRowThreads}, stream, in, x.stride, scale,
               eps, out, y.stride, static_cast<float*>(inv_rms.data), x.rows, static_cast<int>(groups),
               static_cast<int>(width));
      });
    });
  });
}

void rmsnorm_backward(ConstMatrix x, ConstVector weight, ConstVector inv_rms, ConstMatrix dy, Matrix dx,
                      bool accumulate, SequenceShape shape, const GradientView& dweight,
                      const Scratch& scratch, cudaStream_t stream) {
  const Index width = weight.size, groups = x.cols / width;
  dispatch(x.dtype, [&](auto type) {
    using T = decltype(type);
    const auto* const in = static_cast<const T*>(x.data);
    const auto* const scale = static_cast<const T*>(weight.data);
    const auto* const d = static_cast<const T*>(dy.data);
    auto* const out = static_cast<T*>(dx.data);
    const bool packed_rows =
        is_packed(in, x.stride) && is_packed(d, dy.stride) && (groups == 1 || is_packed(in, width));
    // Before dx, which may overwrite dy.
    if (dweight) weight_gradient<T>(x, inv_rms, dy, shape, width, packed_rows, dweight, scratch, stream);
    if (dx.cols == 0) return;
    with_team<T>(width, [&](auto team) {
      with_bool(packed_rows && is_packed(scale, 0) && is_packed(out, dx.stride), [&](auto packed) {
        launch("rmsnorm_backward", rmsnorm_backward_kernel<packed(), team(), T>,
               {blocks_for(x.rows * groups, kRowThreads / team()), kRowThreads}, stream, in, x.stride, scale,
               static_cast<const float*>(inv_rms.data), d, dy.stride, out, dx.stride, accumulate, x.rows,
               static_cast<int>(groups), static_cast<int>(width));
      });
    });
  });
}

}  // namespace cartan::kernels
