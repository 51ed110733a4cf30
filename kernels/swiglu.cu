// The gated activation: y = silu(gate) * up, silu(g) = g / (1 + exp(-g)).
//
// A thread works on one chunk of 16 bytes. For each element of y the forward pass reads 2 and writes 1
// elements, the backward pass reads 3 and writes 2 or 3; some 25 and 35 instructions (an accurate exponential
// and a division) for 6 to 12 bytes in 16 bits. Memory bound: 80 to 90 % of the peak bandwidth.
// Source: Shazeer 2020, arXiv:2002.05202.
#include "swiglu.hpp"

#include "rows.cuh"

namespace cartan::kernels {
namespace {

/// 1 where exp(-x) vanishes, 0 where it is infinite.
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

template <bool kPacked, class T>
__global__ void __launch_bounds__(kRowThreads)
    swiglu_forward_kernel(const T* gate_up, Index gate_up_stride, T* y, Index y_stride, Index rows,
                          Index cols, int columns_log2) {
  constexpr int kCount = kPack<T>;
  const RowPlace place(columns_log2);
  const Index first = place.chunk * kCount;
  if (place.row >= rows || first >= cols) return;
  const T* const gates = gate_up + place.row * gate_up_stride;
  float gate[kCount], up[kCount];
  load_chunk<kPacked>(gates, first, cols, gate);
  load_chunk<kPacked>(gates + cols, first, cols, up);
#pragma unroll
  for (int i = 0; i < kCount; ++i) gate[i] = gate[i] * sigmoid(gate[i]) * up[i];
  store_chunk<kPacked>(y + place.row * y_stride, first, cols, gate);
}

// A thread reads all of its elements before it writes: dgate_up may be gate_up, and y may be dy.
template <bool kPacked, class T>
__global__ void __launch_bounds__(kRowThreads)
    swiglu_backward_kernel(const T* gate_up, Index gate_up_stride, const T* dy, Index dy_stride, T* dgate_up,
                           Index dgate_up_stride, T* y, Index y_stride, Index rows, Index cols,
                           int columns_log2) {
  constexpr int kCount = kPack<T>;
  const RowPlace place(columns_log2);
  const Index first = place.chunk * kCount;
  if (place.row >= rows || first >= cols) return;
  const T* const gates = gate_up + place.row * gate_up_stride;
  float gate[kCount], up[kCount], d[kCount];
  load_chunk<kPacked>(gates, first, cols, gate);
  load_chunk<kPacked>(gates + cols, first, cols, up);
  load_chunk<kPacked>(dy + place.row * dy_stride, first, cols, d);
  float result[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float s = sigmoid(gate[i]), silu = gate[i] * s;
    const float slope = s + silu * (1.0f - s);  // d silu / d gate
    gate[i] = d[i] * up[i] * slope;
    result[i] = silu * up[i];
    up[i] = d[i] * silu;
  }
  T* const dgates = dgate_up + place.row * dgate_up_stride;
  store_chunk<kPacked>(dgates, first, cols, gate);
  store_chunk<kPacked>(dgates + cols, first, cols, up);
  if (y != nullptr) store_chunk<kPacked>(y + place.row * y_stride, first, cols, result);
}

}  // namespace

void swiglu_forward(ConstMatrix gate_up, Matrix y, cudaStream_t stream) {
  dispatch(y.dtype, [&](auto type) {
    using T = decltype(type);
    const auto* const gates = static_cast<const T*>(gate_up.data);
    auto* const out = static_cast<T*>(y.data);
    const RowGrid rows = row_grid(y.rows, (y.cols + kPack<T> - 1) / kPack<T>);
    const bool all_packed =
        is_packed(gates, gate_up.stride) && is_packed(gates + y.cols, 0) && is_packed(out, y.stride);
    with_bool(all_packed, [&](auto packed) {
      launch("swiglu_forward", swiglu_forward_kernel<packed(), T>, rows.grid, stream, gates, gate_up.stride,
             out, y.stride, y.rows, y.cols, rows.columns_log2);
    });
  });
}

void swiglu_backward(ConstMatrix gate_up, ConstMatrix dy, Matrix dgate_up, Matrix y, cudaStream_t stream) {
  dispatch(dy.dtype, [&](auto type) {
    using T = decltype(type);
    const auto* const gates = static_cast<const T*>(gate_up.data);
    const auto* const d = static_cast<const T*>(dy.data);
    auto* const dgates = static_cast<T*>(dgate_up.data);
    auto* const out = static_cast<T*>(y.data);
    const RowGrid rows = row_grid(dy.rows, (dy.cols + kPack<T> - 1) / kPack<T>);
    const bool all_packed = is_packed(gates, gate_up.stride) && is_packed(gates + dy.cols, 0) &&
                            is_packed(d, dy.stride) && is_packed(dgates, dgate_up.stride) &&
                            is_packed(dgates + dy.cols, 0) && is_packed(out, y.stride);
    with_bool(all_packed, [&](auto packed) {
      launch("swiglu_backward", swiglu_backward_kernel<packed(), T>, rows.grid, stream, gates, gate_up.stride,
             d, dy.stride, dgates, dgate_up.stride, out, y.stride, dy.rows, dy.cols, rows.columns_log2);
    });
  });
}

}  // namespace cartan::kernels
