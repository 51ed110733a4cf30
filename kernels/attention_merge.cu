// The attention over two sets of keys from that over each (Liu, Zaharia and Abbeel 2023, arXiv:2310.01889). A
// warp takes a head of a token. Bytes: 12 an element with fp32 parts, 10 with 16-bit ones; 3 FLOPs an
// element: bound by memory, expected 85-90 % of its bandwidth.
#include "attention_base.cuh"

namespace cartan::kernels {
namespace {

using namespace attention;

constexpr int kWarps = 8;

template <class T>
__global__ void __launch_bounds__(kWarps* kWarp)
    attention_merge_kernel(float* sums, Index sum_stride, float* lse_sum, const T* parts, Index part_stride,
                           const float* log_sum_exp, Index rows, int heads, int head_dim) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const Index row = static_cast<Index>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (row >= rows) return;
  // Read by the lane that writes it.
  const float a = __shfl_sync(kAllLanes, lane == 0 ? lse_sum[row] : 0.0f, 0), b = log_sum_exp[row];
  if (b == -INFINITY) return;
  // exp(a) + exp(b) = exp(larger) (1 + exp(smaller - larger)). Where the sum has nothing yet, the weights are
  // exactly 0 and 1.
  const float ratio = expf(-fabsf(a - b));
  const float of_larger = 1.0f / (1.0f + ratio), of_smaller = ratio / (1.0f + ratio);
  const float of_sum = a > b ? of_larger : of_smaller, of_part = a > b ? of_smaller : of_larger;
  const Index column = row % heads * head_dim;
  float* const sum = sums + row / heads * sum_stride + column;
  const T* const part = parts + row / heads * part_stride + column;
  for (int c = lane; c < head_dim; c += kWarp)
    sum[c] = fmaf(sum[c], of_sum, of_part == 0.0f ? 0.0f : to_float(part[c]) * of_part);
  if (lane == 0) lse_sum[row] = fmaxf(a, b) + log1pf(ratio);
}

}  // namespace

void attention_merge(Matrix out_sum, Vector lse_sum, ConstMatrix out, ConstVector log_sum_exp, Index head_dim,
                     cudaStream_t stream) {
  const Index heads = out.cols / head_dim, rows = out.rows * heads;
  dispatch(out.dtype, [&](auto element) {
    using T = decltype(element);
    launch("attention_merge", attention_merge_kernel<T>, Grid{blocks_for(rows, kWarps), kWarps * kWarp},
           stream, static_cast<float*>(out_sum.data), out_sum.stride, static_cast<float*>(lse_sum.data),
           static_cast<const T*>(out.data), out.stride, static_cast<const float*>(log_sum_exp.data), rows,
           static_cast<int>(heads), static_cast<int>(head_dim));
  });
}

}  // namespace cartan::kernels
