// Attention, backward: with P = softmax(S), S = scale Q K^T, D = rowsum(dO * O) (Dao 2023, arXiv:2307.08691)
//   dV = P^T dO,   dS = P * (dO V^T - D),   dQ = scale dS K,   dK = scale dS^T Q,
// where P is recomputed from the log-sum-exp. Three launches: D of every row, into scratch; dQ; dK and dV
// (attention_gradients.cuh, or attention_fp32.cu). Where D of all rows is larger than the scratch memory, the
// work goes in pieces: some sequences, some kv heads of one, or some queries of one kv head.
// D reads 4 C bytes a row of 16-bit elements, for 2 C FLOPs: bound by memory, expected 80-90 % of its
// bandwidth.
#include <algorithm>

#include "attention_gradients.cuh"

namespace cartan::kernels {
namespace {

using namespace attention;

constexpr int kRowsOfBlock = 16, kRowThreads = 16;

/// delta[row] = sum over the channels of dout * out, sixteen threads a row, each with packs of eight
/// channels.
template <class T>
__global__ void __launch_bounds__(kRowsOfBlock* kRowThreads)
    attention_delta_kernel(const Work work, const Heads<T> out, const Heads<T> dout, float* delta,
                           const bool packed) {
  constexpr int kChannels = 8, kPacks = kChannels / kPack<T>;
  const HeadGroup at(work);
  const int part = static_cast<int>(threadIdx.x) % kRowThreads;
  const int row = static_cast<int>(blockIdx.x) * kRowsOfBlock + static_cast<int>(threadIdx.x) / kRowThreads;
  float sum = 0.0f;
  if (at.has_row(row)) {
    const T* const a = out.data + at.query_element(row, out.stride);
    const T* const b = dout.data + at.query_element(row, dout.stride);
    for (int c = part * kChannels; c < work.head_dim; c += kRowThreads * kChannels) {
      if (packed && c + kChannels <= work.head_dim) {
#pragma unroll
        for (int p = 0; p < kPacks; ++p) {
          const Pack<T> x = load_pack(a + c + p * kPack<T>), y = load_pack(b + c + p * kPack<T>);
#pragma unroll
          for (int i = 0; i < kPack<T>; ++i) sum = fmaf(to_float(x.at[i]), to_float(y.at[i]), sum);
        }
      } else {
        for (int i = c; i < min(c + kChannels, work.head_dim); ++i)
          sum = fmaf(to_float(a[i]), to_float(b[i]), sum);
      }
    }
  }
  for (int distance = kRowThreads / 2; distance > 0; distance /= 2)
    sum += __shfl_xor_sync(kAllLanes, sum, distance);
  if (part == 0 && at.has_row(row)) delta[at.scratch_row(row)] = sum;
}

struct Operands {
  ConstMatrix q, k, v, out, dout;
  const float* log_sum_exp;
  Result dq, dk, dv;
};

void backward_piece(const Work& work, const Operands& o, float* delta, cudaStream_t stream) {
  dispatch(o.q.dtype, [&](auto element) {
    using T = decltype(element);
    const Heads<T> out(o.out), dout(o.dout);
    const Grid grid{work.grid(static_cast<int>(blocks_for(work.rows(), kRowsOfBlock))),
                    kRowsOfBlock * kRowThreads};
    launch("attention_delta", attention_delta_kernel<T>, grid, stream, work, out, dout, delta,
           heads_are_packed({&out, &dout}, work.head_dim));
  });
  const Statistics statistics{o.log_sum_exp, delta};
  if (o.q.dtype == DType::f32)
    return backward_fp32(work, o.q, o.k, o.v, o.dout, statistics, o.dq, o.dk, o.dv, stream);
  dispatch_heads(o.q.dtype, work.head_dim, [&](auto element, auto channels) {
    using T = decltype(element);
    backward_mma<T, channels>(work, Heads<T>(o.q), Heads<T>(o.k), Heads<T>(o.v), Heads<T>(o.dout), statistics,
                              o.dq, o.dk, o.dv, stream);
  });
}

}  // namespace

void attention_backward(const device::AttentionShape& shape, ConstMatrix q, ConstMatrix k, ConstMatrix v,
                        ConstMatrix out, ConstVector log_sum_exp,
                        std::span<const std::int32_t> document_start, ConstMatrix dout, Matrix dq,
                        bool accumulate_dq, Matrix dk, Matrix dv, bool accumulate_dkv, const Scratch& scratch,
                        cudaStream_t stream) {
  const Work whole(shape, document_start);
  const Operands operands{q,
                          k,
                          v,
                          out,
                          dout,
                          static_cast<const float*>(log_sum_exp.data),
                          Result(dq, accumulate_dq),
                          Result(dk, accumulate_dkv),
                          Result(dv, accumulate_dkv)};
  const int room = static_cast<int>(std::min<std::size_t>(scratch.bytes / sizeof(float), INT_MAX));
  const int of_head = std::max(whole.rows(), 1);
  const int heads_fit = room / of_head;
  // Queries in multiples of what a product on tensor cores sums up at once: fp32 sums go on with the same
  // bits.
  const int queries = heads_fit > 0 ? whole.queries : room / whole.group / 16 * 16;
  const int heads = std::clamp(heads_fit, 1, whole.kv_heads);
  const int sequences = std::max(heads_fit / whole.kv_heads, 1);
  for (int s = 0; s < whole.sequences; s += sequences) {
    for (int h = 0; h < whole.kv_heads; h += heads) {
      // Without queries, dK and dV may still have to become 0.
      for (int first = 0; first == 0 || first < whole.queries; first += queries) {
        Work piece = whole;
        piece.first_sequence = s;
        piece.sequences = std::min(sequences, whole.sequences - s);
        piece.first_kv_head = h;
        piece.kv_heads = std::min(heads, whole.kv_heads - h);
        piece.first_query = first;
        piece.queries = std::min(queries, whole.queries - first);
        Operands of_piece = operands;
        if (first > 0) of_piece.dk.accumulate = of_piece.dv.accumulate = true;
        backward_piece(piece, of_piece, scratch.as<float>(), stream);
        if (queries == 0) break;
      }
    }
  }
}

}  // namespace cartan::kernels
