// Rows of the token table: read, and summed up again in the backward pass.
//
// Forward: a copy, 2 reads and writes of 2 bytes for each element of 16 bits; 80 to 90 % of the peak
// bandwidth, for tables in the L2 cache more. A negative id gives a row of NaN, which the check of the loss
// finds; the host does not know the ids.
//
// Backward: the tokens of each row of the table are listed in order first, for a range of the vocabulary at a
// time. A warp owns a few rows, runs over all ids, which lie in the L2 cache, and keeps its own: no sorting,
// and no order that depends on who came first. (Where a row's list lies in the array of lists does; nobody
// can tell.) Then two kernels share the rows: those with tokens are summed and folded column by column,
// reading dout once; those without receive what folding zeros leaves, which reads a slot only where two
// values of the stack meet and writes the new ones. Bytes: 2 for an element of dout and, on the whole, 4 for
// an element of the table in each new slot (8 more where a slot is read and rewritten), so a big table
// dominates: 85 % of the peak bandwidth on the table, plus some 0.1 ms for 32k ids. dout is read a column a
// thread, 64 bytes a warp, and every warp looks up where its row's tokens are: as many sectors again, from
// the L1 cache.
#include "embedding.hpp"

#include "fold.cuh"
#include "rows.cuh"

namespace cartan::kernels {
namespace {

template <bool kPacked, class T>
__global__ void __launch_bounds__(kRowThreads)
    embedding_forward_kernel(const std::int32_t* ids, const T* table, Index table_stride, Index table_rows,
                             Index first_id, T* out, Index out_stride, Index rows, Index cols,
                             int columns_log2) {
  constexpr int kCount = kPack<T>;
  const RowPlace place(columns_log2);
  const Index first = place.chunk * kCount;
  if (place.row >= rows || first >= cols) return;
  const Index id = ids[place.row], row = id - first_id;
  float values[kCount];
  if (row >= 0 && row < table_rows) {
    load_chunk<kPacked>(table + row * table_stride, first, cols, values);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = id < 0 ? NAN : 0.0f;
  }
  store_chunk<kPacked>(out + place.row * out_stride, first, cols, values);
}

/// The tokens of the rows [first_id, first_id + rows) of the table: those of row v, in order, are
/// order[begin[v]]
/// ... order[end[v] - 1].
struct TokenLists {
  int* listed;  ///< how many tokens there are in all lists
  int *begin, *end, *order;
  Index first_id;
  int rows;
};

constexpr int kListThreads = 256, kListWarps = kListThreads / kWarp, kMostListRows = 64;

/// One warp for each `rows_of_warp` rows. A warp with tokens reads all ids twice: 8 bytes
/// a token.
__global__ void __launch_bounds__(kListThreads)
    token_lists_kernel(const std::int32_t* ids, int tokens, TokenLists lists, int rows_of_warp) {
  __shared__ int next_of_warp[kListWarps][kMostListRows];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  int* const next = next_of_warp[warp];  // lane 0's: first a row's tokens, then where the next one goes
  const Index first_row = (static_cast<Index>(blockIdx.x) * kListWarps + warp) * rows_of_warp;
  if (first_row >= lists.rows) return;
  const int rows = static_cast<int>(min(static_cast<Index>(rows_of_warp), lists.rows - first_row));
  const Index first_id = lists.first_id + first_row;
  /// f(row of this warp, lanes that have it, whether this lane does, token) for groups of 32 tokens in order.
  const auto for_own = [&](const auto& f) {
    constexpr int kAhead = 4;
    for (int start = 0; start < tokens; start += kAhead * kWarp) {
      Index row[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int token = start + i * kWarp + lane;
        row[i] = token < tokens ? ids[token] - first_id : -1;
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const bool own = row[i] >= 0 && row[i] < rows;
        unsigned left = __ballot_sync(kAllLanes, own);
        while (left != 0) {
          const int row_now =
              __shfl_sync(kAllLanes, static_cast<int>(row[i]), __ffs(static_cast<int>(left)) - 1);
          const bool here = own && row[i] == row_now;
          const unsigned same = __ballot_sync(kAllLanes, here);
          f(row_now, same, here, start + i * kWarp + lane);
          left &= ~same;
        }
      }
    }
  };

  for (int r = lane; r < rows; r += kWarp) next[r] = 0;
  __syncwarp();
  for_own([&](int row, unsigned same, bool, int) {
    if (lane == 0) next[row] += __popc(same);
  });
  int total = 0;
  if (lane == 0) {
    for (int r = 0; r < rows; ++r) total += next[r];
    int begin = total == 0 ? 0 : atomicAdd(lists.listed, total);
    for (int r = 0; r < rows; ++r) {
      const int count = next[r];
      lists.begin[first_row + r] = next[r] = begin;
      lists.end[first_row + r] = begin += count;
    }
  }
  if (__shfl_sync(kAllLanes, total, 0) == 0) return;
  for_own([&](int row, unsigned same, bool here, int token) {
    int begin = 0;
    if (lane == 0) {
      begin = next[row];
      next[row] = begin + __popc(same);
    }
    begin = __shfl_sync(kAllLanes, begin, 0);
    if (here) lists.order[begin + __popc(same & ((1u << lane) - 1))] = token;
  });
}

constexpr int kSumThreads = 256;

// Block (i, columns): if the i-th of the listed tokens is its row's first, the row's leaves, a column a
// thread.
template <class T>
__global__ void __launch_bounds__(kSumThreads)
    embedding_rows_kernel(const std::int32_t* ids, const T* dout, Index dout_stride, Index cols, Index length,
                          TokenLists lists, Index table_row, const __grid_constant__ Fold fold) {
  __shared__ float room[Fold::kMaxDepth * kSumThreads];
  const int position = static_cast<int>(blockIdx.x);
  if (position >= *lists.listed) return;
  const Index row = ids[lists.order[position]] - lists.first_id;
  if (lists.begin[row] != position) return;
  const Index column = static_cast<Index>(blockIdx.y) * kSumThreads + threadIdx.x;
  if (column >= cols) return;
  FoldStack stack(fold, (table_row + row) * cols + column, room);
  const int end = lists.end[row];
  int next = position;
  for (int leaf = 0; leaf < fold.leaves; ++leaf) {
    const Index sequence_end = (leaf + 1) * length;
    constexpr int kAhead = 8;  // loads under way
    float sum = 0.0f;
    for (int found = kAhead; found == kAhead && next < end; next += found) {
      float values[kAhead];
      found = 0;
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const Index token = next + i < end ? lists.order[next + i] : sequence_end;
        const bool here = token < sequence_end;
        values[i] = here ? to_float(dout[token * dout_stride + column]) : 0.0f;
        found += here ? 1 : 0;
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) sum += values[i];  // + 0 changes no bit: sum is never -0
    }
    stack.push(sum);
  }
  stack.finish();
}

/// What folding zeros does to the slots: values lowest ... depth_before - 1 become one, the slots above hold
/// 0.
struct ZeroFold {
  float* slots[Fold::kMaxSlots];
  int depth_before, depth_after, lowest;
};

ZeroFold zero_fold(const Fold& fold) {
  ZeroFold zero{};
  std::copy(std::begin(fold.slots), std::end(fold.slots), zero.slots);
  int depth = fold.depth_before;
  zero.depth_before = zero.lowest = depth;
  for (int leaf = 0; leaf < fold.leaves; ++leaf) {
    depth -= fold.merges[leaf];
    zero.lowest = std::min(zero.lowest, depth);
    ++depth;
  }
  zero.depth_after = depth;
  return zero;
}

constexpr int kZeroColumns = kPack<float>;

// Four columns of a row without tokens for each thread.
template <bool kPacked>
__global__ void __launch_bounds__(kRowThreads)
    embedding_zero_rows_kernel(TokenLists lists, Index table_row, Index cols, int columns_log2,
                               const __grid_constant__ ZeroFold fold) {
  const RowPlace place(columns_log2);
  const Index first = place.chunk * kZeroColumns;
  if (place.row >= lists.rows || first >= cols) return;
  if (lists.begin[place.row] != lists.end[place.row]) return;
  const Index start = (table_row + place.row) * cols;
  float sum[kZeroColumns] = {}, value[kZeroColumns];
  int slot = fold.lowest;
  if (slot < fold.depth_before) {
    if (slot + 1 < fold.depth_before) {
      load_chunk<kPacked>(fold.slots[fold.depth_before - 1] + start, first, cols, sum);
      for (int i = fold.depth_before - 2; i >= slot; --i) {
        load_chunk<kPacked>(fold.slots[i] + start, first, cols, value);
#pragma unroll
        for (int j = 0; j < kZeroColumns; ++j) sum[j] = value[j] + sum[j];
      }
      store_chunk<kPacked>(fold.slots[slot] + start, first, cols, sum);
    }
    ++slot;
  }
#pragma unroll
  for (int j = 0; j < kZeroColumns; ++j) sum[j] = 0.0f;
  for (; slot < fold.depth_after; ++slot) store_chunk<kPacked>(fold.slots[slot] + start, first, cols, sum);
}

}  // namespace

void embedding_forward(std::span<const std::int32_t> ids, ConstMatrix table, Index first, Matrix out,
                       cudaStream_t stream) {
  dispatch(out.dtype, [&](auto type) {
    using T = decltype(type);
    const auto* const from = static_cast<const T*>(table.data);
    auto* const to = static_cast<T*>(out.data);
    const RowGrid rows = row_grid(out.rows, (out.cols + kPack<T> - 1) / kPack<T>);
    with_bool(is_packed(from, table.stride) && is_packed(to, out.stride), [&](auto packed) {
      launch("embedding_forward", embedding_forward_kernel<packed(), T>, rows.grid, stream, ids.data(), from,
             table.stride, table.rows, first, to, out.stride, out.rows, out.cols, rows.columns_log2);
    });
  });
}

void embedding_backward(std::span<const std::int32_t> ids, ConstMatrix dout, SequenceShape shape, Index first,
                        Index vocab, const GradientView& dtable, const Scratch& scratch,
                        cudaStream_t stream) {
  const Fold fold = make_fold(dtable);
  if (fold.leaves == 0 || dout.cols == 0) return;
  const ZeroFold zero = zero_fold(fold);
  const Index tokens = shape.tokens(), cols = dout.cols;
  const auto ints = static_cast<Index>(scratch.bytes / sizeof(int));
  // Lists of a quarter of the scratch memory's vocabulary are always possible.
  const Index most_tokens = ints / 2;
  if (tokens > most_tokens) refuse_tokens(tokens, most_tokens);
  const Index rows_at_once = (ints - tokens - 1) / 2;
  bool slots_packed = cols % kZeroColumns == 0;
  for (int i = 0; i < zero.depth_after || i < zero.depth_before; ++i)
    slots_packed = slots_packed && is_packed(zero.slots[i], 0);

  for (Index row = 0; row < vocab; row += rows_at_once) {
    const auto rows = static_cast<int>(std::min(rows_at_once, vocab - row));
    auto* const room = scratch.as<int>();
    const TokenLists lists{room, room + 1, room + 1 + rows, room + 1 + 2 * rows, first + row, rows};
    check(cudaMemsetAsync(lists.listed, 0, sizeof(int), stream), "embedding_lists");
    // Few rows a warp, so that there are some thousand of them, but no more warps than need be read the ids.
    const int rows_of_warp = static_cast<int>(std::clamp<Index>(rows / 2048, 1, kMostListRows));
    launch("embedding_lists", token_lists_kernel,
           {blocks_for(rows, Index{kListWarps} * rows_of_warp), kListThreads}, stream, ids.data(),
           static_cast<int>(tokens), lists, rows_of_warp);
    dispatch(dout.dtype, [&](auto type) {
      using T = decltype(type);
      launch("embedding_rows", embedding_rows_kernel<T>,
             {dim3(static_cast<unsigned>(tokens), blocks_for(cols, kSumThreads)), kSumThreads}, stream,
             ids.data(), static_cast<const T*>(dout.data), dout.stride, cols, shape.length, lists, row, fold);
    });
    const RowGrid grid = row_grid(rows, (cols + kZeroColumns - 1) / kZeroColumns);
    with_bool(slots_packed, [&](auto packed) {
      launch("embedding_zero_rows", embedding_zero_rows_kernel<packed()>, grid.grid, stream, lists, row, cols,
             grid.columns_log2, zero);
    });
  }
}

}  // namespace cartan::kernels
