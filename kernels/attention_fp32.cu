// Attention in fp32 on ordinary cores, forward and backward (formulas: attention_forward.cu,
// attention_backward.cu). A block owns 32 rows or keys, the others pass by, 32 at once; a thread computes 2 x
// 4 scores, and 2 owned rows of every result. Every sum runs over channels, keys or rows one by one in
// ascending order, and goes on from what accumulates, so that bits do not depend on the cut into runs,
// wherever it is.
//
// FLOPs a visible pair of query and key: 4 C forward, 14 C backward, C = head_dim. Six loads of 16 bytes from
// shared memory feed 32 multiply-adds of the scores, three 8 to 32 of the sums: expected are 30-40 % of the
// fp32 peak. Bank conflicts: only where a tile of 32 rows leaves what each of them sees (two passes). Results
// are stored float by float, in requests of four times the sectors, once a row.
#include "attention_base.cuh"

namespace cartan::kernels::attention {
namespace {

constexpr int kThreads = 128, kTile = 32, kAcross = 8;
constexpr int kScorePitch = kTile + 4;

/// Floats from row to row of a tile: rows of eight threads that read 16 bytes each lie in different banks.
template <int kD>
constexpr int kPitch = kD + 4;

struct alignas(16) Four {
  float at[4];
};
__device__ __forceinline__ Four load4(const float* from) {
  Four four;
  warp::load16(four.at, from);
  return four;
}

/// A thread's place: rows 2 down, 2 down + 1 of the owned tile, and every eighth passing one.
struct Place {
  int down = static_cast<int>(threadIdx.x) / kAcross, across = static_cast<int>(threadIdx.x) % kAcross;

  __device__ Place() {}
  __device__ int owned(int i) const { return 2 * down + i; }
  __device__ int passing(int j) const { return across + j * kAcross; }
  __device__ int channel(int group) const { return group * kTile + across * 4; }
};

/// tile[row, 0 ... width) = source(row)[0 ... head_dim), zeros behind it and where that is nullptr.
template <int kD, class Source>
__device__ __forceinline__ void load(float* tile, int head_dim, int width, const Source& source) {
  for (int row = static_cast<int>(threadIdx.x) / kWarp; row < kTile; row += kThreads / kWarp) {
    const float* const from = source(row);
    for (int c = static_cast<int>(threadIdx.x) % kWarp; c < width; c += kWarp)
      tile[row * kPitch<kD> + c] = from != nullptr && c < head_dim ? from[c] : 0.0f;
  }
}

/// scores[i][j] = dot product of an owned and a passing row.
template <int kD>
__device__ __forceinline__ void multiply_rows(float (&scores)[2][4], const float* owned, const float* passing,
                                              const Place& place, int head_dim) {
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) scores[i][j] = 0.0f;
#pragma unroll 1
  for (int c = 0; c < head_dim; c += 4) {
    Four a[2], b[4];
#pragma unroll
    for (int i = 0; i < 2; ++i) a[i] = load4(owned + place.owned(i) * kPitch<kD> + c);
#pragma unroll
    for (int j = 0; j < 4; ++j) b[j] = load4(passing + place.passing(j) * kPitch<kD> + c);
#pragma unroll
    for (int x = 0; x < 4; ++x)
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) scores[i][j] = fmaf(a[i].at[x], b[j].at[x], scores[i][j]);
  }
}

template <int kD>
using Sums = float[2][kD / kTile][4];

/// sums[i] += sum over the passing rows of weights[owned row, passing row] * passing row.
template <int kD, int kChannels>
__device__ __forceinline__ void add_rows(Sums<kChannels>& sums, const float* weights, const float* passing,
                                         const Place& place, int channels) {
#pragma unroll 1
  for (int row = 0; row < kTile; ++row) {
    float weight[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) weight[i] = weights[place.owned(i) * kScorePitch + row];
#pragma unroll
    for (int group = 0; group < kChannels / kTile; ++group) {
      if (group * kTile >= channels) break;
      const Four x = load4(passing + row * kPitch<kD> + place.channel(group));
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int c = 0; c < 4; ++c) sums[i][group][c] = fmaf(weight[i], x.at[c], sums[i][group][c]);
    }
  }
}

/// f(sum, channel) for each of a thread's sums of owned row i.
template <int kD, class F>
__device__ __forceinline__ void for_each_sum(Sums<kD>& sums, int i, const Place& place, int channels,
                                             const F& f) {
#pragma unroll
  for (int group = 0; group < kD / kTile; ++group)
#pragma unroll
    for (int c = 0; c < 4; ++c)
      if (place.channel(group) + c < channels) f(sums[i][group][c], place.channel(group) + c);
}

template <int kD>
__device__ __forceinline__ void clear(Sums<kD>& sums) {
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int group = 0; group < kD / kTile; ++group)
#pragma unroll
      for (int c = 0; c < 4; ++c) sums[i][group][c] = 0.0f;
}

template <int kD>
__device__ __forceinline__ void load_rows(float* tile, const HeadGroup& at, const Heads<float>& from,
                                          int first_row, int width) {
  load<kD>(tile, at.work.head_dim, width, [&](int row) {
    return at.has_row(first_row + row) ? from.data + at.query_element(first_row + row, from.stride) : nullptr;
  });
}
template <int kD>
__device__ __forceinline__ void load_keys(float* tile, const HeadGroup& at, const Heads<float>& from,
                                          int first_key, int width) {
  load<kD>(tile, at.work.head_dim, width, [&](int row) {
    return at.has_key(first_key + row) ? from.data + at.key_element(first_key + row, from.stride) : nullptr;
  });
}

/// The keys that some of the block's rows see, of which mine are two.
__device__ __forceinline__ KeyRange block_keys_of(const KeyRange (&mine)[2], int* room) {
  return block_keys({warp_min(min(mine[0].begin, mine[1].begin)), warp_max(max(mine[0].end, mine[1].end))},
                    room);
}

template <int kD>
constexpr unsigned kForwardBytes = (3 * kTile * kPitch<kD> + kTile * kScorePitch) * 4;
template <int kD>
constexpr unsigned kBackwardBytes = (4 * kTile * kPitch<kD> + 2 * kTile * kScorePitch) * 4;

template <int kD>
__global__ void __launch_bounds__(kThreads, 2)
    attention_forward_fp32_kernel(const Work work, const Heads<float> q, const Heads<float> k,
                                  const Heads<float> v, const Result out, float* log_sum_exp) {
  float* const q_tile = warp::dynamic_shared<float>();
  float* const k_tile = q_tile + kTile * kPitch<kD>;
  float* const v_tile = k_tile + kTile * kPitch<kD>;
  float* const p_tile = v_tile + kTile * kPitch<kD>;
  __shared__ int room[2 * kThreads / kWarp];
  const HeadGroup at(work);
  const Place place;
  const int width = (work.head_dim + kTile - 1) / kTile * kTile;
  const int first_row = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kTile;

  load_rows<kD>(q_tile, at, q, first_row, width);
  const KeyRange visible[2] = {at.visible(first_row + place.owned(0)),
                               at.visible(first_row + place.owned(1))};
  const KeyRange keys = block_keys_of(visible, room);
  Sums<kD> sums;
  clear<kD>(sums);
  float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
  const float scale = work.scale * kLog2E;

  for (int first_key = keys.begin / kTile * kTile; first_key < keys.end; first_key += kTile) {
    __syncthreads();  // the tiles before have been read
    load_keys<kD>(k_tile, at, k, first_key, width);
    load_keys<kD>(v_tile, at, v, first_key, width);
    __syncthreads();
    float s[2][4];
    multiply_rows<kD>(s, q_tile, k_tile, place, work.head_dim);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float largest = -INFINITY;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        s[i][j] = visible[i].has(first_key + place.passing(j)) ? s[i][j] * scale : -INFINITY;
        largest = fmaxf(largest, s[i][j]);
      }
      for (int distance = kAcross / 2; distance > 0; distance /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, distance));
      const float before = maximum[i];
      maximum[i] = fmaxf(before, largest);
      const float shift = maximum[i] == -INFINITY ? 0.0f : maximum[i];  // a row that has seen nothing yet
      float seen = 0.0f;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        s[i][j] = exp2f(s[i][j] - shift);
        seen += s[i][j];
        p_tile[place.owned(i) * kScorePitch + place.passing(j)] = s[i][j];
      }
      const float fade = exp2f(before - shift);
      sum[i] = fmaf(sum[i], fade, seen);
      for_each_sum<kD>(sums, i, place, work.head_dim, [&](float& x, int) { x *= fade; });
    }
    __syncwarp();  // a row of P is written and read by eight threads of one warp
    add_rows<kD, kD>(sums, p_tile, v_tile, place, work.head_dim);
  }

#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float total = sum[i];
    for (int distance = kAcross / 2; distance > 0; distance /= 2)
      total += __shfl_xor_sync(kAllLanes, total, distance);
    const int row = first_row + place.owned(i);
    if (!at.has_row(row)) continue;
    const bool sees_keys = visible[i].begin < visible[i].end;
    const float factor = sees_keys ? 1.0f / total : 0.0f;
    const Index element = at.query_element(row, out.stride);
    for_each_sum<kD>(sums, i, place, work.head_dim, [&](float& x, int channel) {
      out.set<float>(element + channel, sees_keys ? x * factor : 0.0f);
    });
    if (log_sum_exp != nullptr && place.across == 0)
      log_sum_exp[at.statistic(row)] = sees_keys ? maximum[i] * kLn2 + logf(total) : -INFINITY;
  }
}

/// P and dS of an owned and a passing row, from their scores s and dp.
__device__ __forceinline__ void differentiate(float& s, float& dp, bool visible, float log2_sum, float delta,
                                              float scale) {
  s = visible ? exp2f(s * (scale * kLog2E) - log2_sum) : 0.0f;
  dp = visible ? s * (dp - delta) * scale : 0.0f;
}

template <int kD>
__global__ void __launch_bounds__(kThreads, 2)
    attention_dq_fp32_kernel(const Work work, const Heads<float> q, const Heads<float> k,
                             const Heads<float> v, const Heads<float> dout, const Statistics statistics,
                             const Result dq) {
  float* const q_tile = warp::dynamic_shared<float>();
  float* const dout_tile = q_tile + kTile * kPitch<kD>;
  float* const k_tile = dout_tile + kTile * kPitch<kD>;
  float* const v_tile = k_tile + kTile * kPitch<kD>;
  float* const ds_tile = v_tile + kTile * kPitch<kD>;
  __shared__ int room[2 * kThreads / kWarp];
  const HeadGroup at(work);
  const Place place;
  const int width = (work.head_dim + kTile - 1) / kTile * kTile;
  const int first_row = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kTile;

  load_rows<kD>(q_tile, at, q, first_row, width);
  load_rows<kD>(dout_tile, at, dout, first_row, width);
  KeyRange visible[2];
  float log2_sum[2], delta[2];
  Sums<kD> sums;
  clear<kD>(sums);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = first_row + place.owned(i);
    visible[i] = at.visible(row);
    log2_sum[i] = statistics.log2_sum(at, row);
    delta[i] = statistics.mean(at, row);
    if (dq.accumulate && at.has_row(row)) {
      const Index element = at.query_element(row, dq.stride);
      for_each_sum<kD>(sums, i, place, work.head_dim,
                       [&](float& x, int channel) { x = dq.get<float>(element + channel); });
    }
  }
  const KeyRange keys = block_keys_of(visible, room);

  for (int first_key = keys.begin / kTile * kTile; first_key < keys.end; first_key += kTile) {
    __syncthreads();  // the tiles before have been read
    load_keys<kD>(k_tile, at, k, first_key, width);
    load_keys<kD>(v_tile, at, v, first_key, width);
    __syncthreads();
    float s[2][4], ds[2][4];
    multiply_rows<kD>(s, q_tile, k_tile, place, work.head_dim);
    multiply_rows<kD>(ds, dout_tile, v_tile, place, work.head_dim);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        differentiate(s[i][j], ds[i][j], visible[i].has(first_key + place.passing(j)), log2_sum[i], delta[i],
                      work.scale);
        ds_tile[place.owned(i) * kScorePitch + place.passing(j)] = ds[i][j];
      }
    }
    __syncwarp();  // a row of dS is written and read by eight threads of one warp
    add_rows<kD, kD>(sums, ds_tile, k_tile, place, work.head_dim);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = first_row + place.owned(i);
    if (!at.has_row(row)) continue;
    const Index element = at.query_element(row, dq.stride);
    for_each_sum<kD>(sums, i, place, work.head_dim,
                     [&](float& x, int channel) { dq.set<float>(element + channel, x); });
  }
}

/// kParts blocks own a tile of keys, each kD / kParts channels of its sums.
template <int kD, int kParts>
__global__ void __launch_bounds__(kThreads, 2)
    attention_dkv_fp32_kernel(const Work work, const Heads<float> q, const Heads<float> k,
                              const Heads<float> v, const Heads<float> dout, const Statistics statistics,
                              const Result dk, const Result dv) {
  float* const k_tile = warp::dynamic_shared<float>();
  float* const v_tile = k_tile + kTile * kPitch<kD>;
  float* const q_tile = v_tile + kTile * kPitch<kD>;
  float* const dout_tile = q_tile + kTile * kPitch<kD>;
  float* const p_tile = dout_tile + kTile * kPitch<kD>;
  float* const ds_tile = p_tile + kTile * kScorePitch;
  __shared__ int room[kThreads / kWarp];
  __shared__ float log2_sum[kTile], delta[kTile];
  __shared__ KeyRange visible[kTile];
  const HeadGroup at(work);
  const Place place;
  const int width = (work.head_dim + kTile - 1) / kTile * kTile;
  constexpr int kChannels = kD / kParts;
  const int first_channel = static_cast<int>(blockIdx.x) % kParts * kChannels;
  const int channels = min(work.head_dim - first_channel, kChannels);
  const int first_key = work.k_first + static_cast<int>(blockIdx.x) / kParts * kTile;

  load_keys<kD>(k_tile, at, k, first_key, width);
  load_keys<kD>(v_tile, at, v, first_key, width);
  const int first_query = max(first_key - work.q_first - work.first_query, 0);
  const int last_key = min(first_key + kTile, work.k_end()) - 1;
  const int end_row = (last_query(at, first_query, last_key, room) + 1) * work.group;
  Sums<kChannels> dk_sums, dv_sums;
  clear<kChannels>(dk_sums);
  clear<kChannels>(dv_sums);
  if (dk.accumulate) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int key = first_key + place.owned(i);
      if (!at.has_key(key)) continue;
      const Index of_k = at.key_element(key, dk.stride) + first_channel;
      const Index of_v = at.key_element(key, dv.stride) + first_channel;
      for_each_sum<kChannels>(dk_sums, i, place, channels,
                              [&](float& x, int channel) { x = dk.get<float>(of_k + channel); });
      for_each_sum<kChannels>(dv_sums, i, place, channels,
                              [&](float& x, int channel) { x = dv.get<float>(of_v + channel); });
    }
  }

  for (int first_row = first_query * work.group; first_row < end_row; first_row += kTile) {
    __syncthreads();  // the tiles before have been read
    load_rows<kD>(q_tile, at, q, first_row, width);
    load_rows<kD>(dout_tile, at, dout, first_row, width);
    if (threadIdx.x < kTile) {
      const int row = first_row + static_cast<int>(threadIdx.x);
      visible[threadIdx.x] = at.visible(row);
      log2_sum[threadIdx.x] = statistics.log2_sum(at, row);
      delta[threadIdx.x] = statistics.mean(at, row);
    }
    __syncthreads();
    float p[2][4], ds[2][4];
    multiply_rows<kD>(p, k_tile, q_tile, place, work.head_dim);
    multiply_rows<kD>(ds, v_tile, dout_tile, place, work.head_dim);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int row = place.passing(j), element = place.owned(i) * kScorePitch + row;
        differentiate(p[i][j], ds[i][j], visible[row].has(first_key + place.owned(i)), log2_sum[row],
                      delta[row], work.scale);
        p_tile[element] = p[i][j];
        ds_tile[element] = ds[i][j];
      }
    }
    __syncwarp();  // a key's row of P and dS is written and read by eight threads of one warp
    add_rows<kD, kChannels>(dv_sums, p_tile, dout_tile + first_channel, place, channels);
    add_rows<kD, kChannels>(dk_sums, ds_tile, q_tile + first_channel, place, channels);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int key = first_key + place.owned(i);
    if (!at.has_key(key)) continue;
    const Index of_k = at.key_element(key, dk.stride) + first_channel;
    const Index of_v = at.key_element(key, dv.stride) + first_channel;
    for_each_sum<kChannels>(dk_sums, i, place, channels,
                            [&](float& x, int channel) { dk.set<float>(of_k + channel, x); });
    for_each_sum<kChannels>(dv_sums, i, place, channels,
                            [&](float& x, int channel) { dv.set<float>(of_v + channel, x); });
  }
}

template <class F>
void dispatch_channels(int head_dim, const F& f) {
  if (head_dim <= 64) return f(std::integral_constant<int, 64>{});
  if (head_dim <= 128) return f(std::integral_constant<int, 128>{});
  f(std::integral_constant<int, 256>{});
}

int tiles_of(int count) { return static_cast<int>(blocks_for(count, kTile)); }

}  // namespace

void forward_fp32(const Work& work, const ConstMatrix& q, const ConstMatrix& k, const ConstMatrix& v,
                  const Result& out, float* log_sum_exp, cudaStream_t stream) {
  dispatch_channels(work.head_dim, [&](auto channels) {
    constexpr int kD = decltype(channels)::value;
    launch("attention_forward_fp32", attention_forward_fp32_kernel<kD>,
           Grid{work.grid(tiles_of(work.rows())), kThreads, kForwardBytes<kD>}, stream, work, Heads<float>(q),
           Heads<float>(k), Heads<float>(v), out, log_sum_exp);
  });
}

void backward_fp32(const Work& work, const ConstMatrix& q, const ConstMatrix& k, const ConstMatrix& v,
                   const ConstMatrix& dout, const Statistics& statistics, const Result& dq, const Result& dk,
                   const Result& dv, cudaStream_t stream) {
  const Heads<float> qs(q), ks(k), vs(v), douts(dout);
  dispatch_channels(work.head_dim, [&](auto channels) {
    constexpr int kD = decltype(channels)::value;
    constexpr int kParts = kD <= 128 ? 1 : 2;
    launch("attention_dq_fp32", attention_dq_fp32_kernel<kD>,
           Grid{work.grid(tiles_of(work.rows())), kThreads, kBackwardBytes<kD>}, stream, work, qs, ks, vs,
           douts, statistics, dq);
    launch("attention_dkv_fp32", attention_dkv_fp32_kernel<kD, kParts>,
           Grid{work.grid(kParts * tiles_of(work.k_length)), kThreads, kBackwardBytes<kD>}, stream, work, qs,
           ks, vs, douts, statistics, dk, dv);
  });
}

}  // namespace cartan::kernels::attention
