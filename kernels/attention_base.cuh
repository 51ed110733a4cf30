// How attention cuts its work, for every kernel of it. The query heads of a kv head are taken together: row r
// of a kv head is query r / group with head r % group of the group, so that a tile of rows shares its keys,
// also while decoding. Keys are known by their absolute positions.
#pragma once

#include <climits>
#include <initializer_list>
#include <span>

#include "attention.hpp"
#include "base.cuh"

namespace cartan::kernels::attention {

inline constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

/// Rows of heads, one beside the other, to read.
template <class T>
struct Heads {
  const T* data;
  Index stride;

  explicit Heads(const ConstMatrix& m) : data(static_cast<const T*>(m.data)), stride(m.stride) {}
};

/// Whether every head of every row can be moved in packs.
template <class T>
bool heads_are_packed(std::initializer_list<const Heads<T>*> operands, int head_dim) {
  for (const Heads<T>* heads : operands) {
    if (!is_packed(heads->data, heads->stride)) return false;
  }
  return head_dim % kPack<T> == 0;
}

/// Calls f(T{}, channels) for a 16-bit type and the smallest number of channels with kernels of their own
/// that holds head_dim.
template <class F>
void dispatch_heads(DType dtype, int head_dim, const F& f) {
  const auto with = [&](auto element) {
    if (head_dim <= 32) return f(element, std::integral_constant<int, 32>{});
    if (head_dim <= 64) return f(element, std::integral_constant<int, 64>{});
    if (head_dim <= 96) return f(element, std::integral_constant<int, 96>{});
    if (head_dim <= 128) return f(element, std::integral_constant<int, 128>{});
    return f(element, std::integral_constant<int, 256>{});
  };
  if (dtype == DType::bf16) return with(bf16{});
  if (dtype == DType::f16) return with(half{});
  refuse(dtype);
}

/// Rows of heads to write, fp32 or T.
struct Result {
  void* data;
  Index stride;
  bool fp32, accumulate;

  explicit Result(const Matrix& m, bool adds = false)
      : data(m.data), stride(m.stride), fp32(m.dtype == DType::f32), accumulate(adds) {}

  template <class T>
  __device__ float get(Index element) const {
    return fp32 ? static_cast<const float*>(data)[element] : to_float(static_cast<const T*>(data)[element]);
  }
  template <class T>
  __device__ void set(Index element, float value) const {
    if (fp32) {
      static_cast<float*>(data)[element] = value;
    } else {
      static_cast<T*>(data)[element] = from_float<T>(value);
    }
  }
};

/// Keys begin ... end - 1.
struct KeyRange {
  int begin, end;

  __device__ bool has(int key) const { return key >= begin && key < end; }
};

/// What a launch works on: all of a call, or the queries, heads and sequences from first_*.
struct Work {
  int q_length, k_length, heads, group, head_dim, q_first, k_first;
  float scale;
  const std::int32_t* document_start;
  int first_sequence = 0, sequences, first_kv_head = 0, kv_heads, first_query = 0, queries;

  Work(const device::AttentionShape& shape, std::span<const std::int32_t> starts)
      : q_length(static_cast<int>(shape.q_length)),
        k_length(static_cast<int>(shape.k_length)),
        heads(static_cast<int>(shape.heads)),
        group(static_cast<int>(shape.heads / shape.kv_heads)),
        head_dim(static_cast<int>(shape.head_dim)),
        q_first(static_cast<int>(shape.q_first)),
        k_first(static_cast<int>(shape.k_first)),
        scale(shape.scale),
        document_start(starts.data()),
        sequences(static_cast<int>(shape.sequences)),
        kv_heads(static_cast<int>(shape.kv_heads)),
        queries(q_length) {}

  __host__ __device__ int rows() const { return queries * group; }
  __device__ int k_end() const { return k_first + k_length; }
  dim3 grid(int tiles) const {
    return dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(kv_heads),
                static_cast<unsigned>(sequences));
  }
};

/// A kv head of a sequence, by the block's y and z.
struct HeadGroup {
  const Work& work;
  int sequence, kv_head;

  __device__ explicit HeadGroup(const Work& w)
      : work(w),
        sequence(w.first_sequence + static_cast<int>(blockIdx.z)),
        kv_head(w.first_kv_head + static_cast<int>(blockIdx.y)) {}

  __device__ Index token(int row) const {
    return static_cast<Index>(sequence) * work.q_length + work.first_query + row / work.group;
  }
  __device__ int head(int row) const { return kv_head * work.group + row % work.group; }
  __device__ Index statistic(int row) const { return token(row) * work.heads + head(row); }
  /// First element of a row of queries.
  __device__ Index query_element(int row, Index stride) const {
    return token(row) * stride + static_cast<Index>(head(row)) * work.head_dim;
  }
  /// Of the key at this position.
  __device__ Index key_element(int key, Index stride) const {
    return (static_cast<Index>(sequence) * work.k_length + key - work.k_first) * stride +
           static_cast<Index>(kv_head) * work.head_dim;
  }
  __device__ bool has_row(int row) const { return row < work.rows(); }
  __device__ bool has_key(int key) const { return key >= work.k_first && key < work.k_end(); }
  /// What a row sees of the keys here. Nothing is [INT_MAX, 0).
  __device__ KeyRange visible(int row) const {
    if (!has_row(row)) return {INT_MAX, 0};
    const int position = work.q_first + work.first_query + row / work.group;
    const int begin = max(work.document_start[token(row)], work.k_first);
    const int end = min(position + 1, work.k_end());
    if (begin >= end) return {INT_MAX, 0};
    return {begin, end};
  }
  /// Where this piece keeps one number a row.
  __device__ Index scratch_row(int row) const {
    return (static_cast<Index>(blockIdx.z) * work.kv_heads + blockIdx.y) * work.rows() + row;
  }
};

__device__ __forceinline__ int warp_min(int x) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    x = min(x, __shfl_xor_sync(kAllLanes, x, distance));
  return x;
}
__device__ __forceinline__ int warp_max(int x) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    x = max(x, __shfl_xor_sync(kAllLanes, x, distance));
  return x;
}

/// The keys that some of a warp's rows see, and those that all of them see.
struct WarpKeys {
  KeyRange some, all;

  __device__ bool touches(int first, int count) const {
    return first < some.end && first + count > some.begin;
  }
  __device__ bool masks(int first, int count) const { return first < all.begin || first + count > all.end; }
};

/// From what a lane's rows see together, and what all of them see.
__device__ __forceinline__ WarpKeys warp_keys(const KeyRange& some, const KeyRange& all) {
  return {{warp_min(some.begin), warp_max(some.end)}, {warp_max(all.begin), warp_min(all.end)}};
}

/// The keys that some row of the block sees. `room` has two ints a warp.
__device__ __forceinline__ KeyRange block_keys(const KeyRange& warp_some, int* room) {
  const int warps = static_cast<int>(blockDim.x) / kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  if (threadIdx.x % kWarp == 0) {
    room[warp] = warp_some.begin;
    room[warps + warp] = warp_some.end;
  }
  __syncthreads();
  KeyRange keys{INT_MAX, 0};
  for (int i = 0; i < warps; ++i) keys = {min(keys.begin, room[i]), max(keys.end, room[warps + i])};
  return keys;
}

/// The last query that sees key `last` or an earlier one, -1 where none does; queries before `first` are
/// known to stand before the keys. `room` has an int a warp.
__device__ __forceinline__ int last_query(const HeadGroup& at, int first, int last_key, int* room) {
  const Work& work = at.work;
  const std::int32_t* const starts =
      work.document_start + static_cast<Index>(at.sequence) * work.q_length + work.first_query;
  int found = -1;
  for (int i = first + static_cast<int>(threadIdx.x); i < work.queries; i += static_cast<int>(blockDim.x)) {
    if (starts[i] <= last_key) found = i;
  }
  found = warp_max(found);
  if (threadIdx.x % kWarp == 0) room[threadIdx.x / kWarp] = found;
  __syncthreads();
  for (int i = 0; i < static_cast<int>(blockDim.x) / kWarp; ++i) found = max(found, room[i]);
  return found;
}

/// What the backward kernels read beside the operands.
struct Statistics {
  const float *log_sum_exp, *delta;

  /// log2 of the sum; infinity for a row that sees nothing, whose probabilities are 0.
  __device__ float log2_sum(const HeadGroup& at, int row) const {
    if (!at.has_row(row)) return INFINITY;
    const float lse = log_sum_exp[at.statistic(row)];
    return lse == -INFINITY ? INFINITY : lse * kLog2E;
  }
  __device__ float mean(const HeadGroup& at, int row) const {
    return at.has_row(row) ? delta[at.scratch_row(row)] : 0.0f;
  }
};

// The fp32 family (attention_fp32.cu).
void forward_fp32(const Work& work, const ConstMatrix& q, const ConstMatrix& k, const ConstMatrix& v,
                  const Result& out, float* log_sum_exp, cudaStream_t stream);
void backward_fp32(const Work& work, const ConstMatrix& q, const ConstMatrix& k, const ConstMatrix& v,
                   const ConstMatrix& dout, const Statistics& statistics, const Result& dq, const Result& dk,
                   const Result& dv, cudaStream_t stream);

}  // namespace cartan::kernels::attention
