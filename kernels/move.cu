// Element-wise sums, copies and casts.
//
// A thread moves one chunk: 4 floats of a sum, 16 bytes of a copy or of the wider side of a cast. Bytes: add
// and subtract read 8 and write 4 for each element, a copy reads and writes its elements once; an addition or
// a conversion for each element. Nothing but memory traffic: 85 to 90 % of the peak bandwidth are to be
// expected of large operands in packs, about half of it where rows start at odd places.
#include "move.hpp"

#include "rows.cuh"

namespace cartan::kernels {
namespace {

template <bool kPacked>
__global__ void __launch_bounds__(kRowThreads) add_kernel(float* y, const float* x, Index size, float sign) {
  const Index first = (static_cast<Index>(blockIdx.x) * kRowThreads + threadIdx.x) * kPack<float>;
  if (first >= size) return;
  float sum[kPack<float>], term[kPack<float>];
  load_chunk<kPacked>(y, first, size, sum);
  load_chunk<kPacked>(x, first, size, term);
#pragma unroll
  for (int i = 0; i < kPack<float>; ++i) sum[i] = sum[i] + sign * term[i];
  store_chunk<kPacked>(y, first, size, sum);
}

void add_signed(const char* name, Vector y, ConstVector x, float sign, cudaStream_t stream) {
  auto* const sum = static_cast<float*>(y.data);
  const auto* const term = static_cast<const float*>(x.data);
  const Grid grid{blocks_for(y.size, Index{kRowThreads} * kPack<float>), kRowThreads};
  with_bool(is_packed(sum, 0) && is_packed(term, 0),
            [&](auto packed) { launch(name, add_kernel<packed()>, grid, stream, sum, term, y.size, sign); });
}

/// 16 bytes of the wider one: threads side by side then share no sector.
template <class From, class To>
inline constexpr int kCopied = std::min(kPack<From>, kPack<To>);

template <bool kPacked, class From, class To>
__global__ void __launch_bounds__(kRowThreads)
    copy_kernel(const From* x, Index x_stride, To* y, Index y_stride, Index rows, Index cols,
                int columns_log2) {
  constexpr int kCount = kCopied<From, To>;
  const RowPlace place(columns_log2);
  const Index first = place.chunk * kCount;
  if (place.row >= rows || first >= cols) return;
  const From* const from = x + place.row * x_stride;
  To* const to = y + place.row * y_stride;
  if constexpr (std::is_same_v<From, To>) {  // the bits, also of a NaN
    if (kPacked && first + kCount <= cols) {
      store_pack(to + first, load_pack(from + first));
      return;
    }
    for (Index i = first; i < min(cols, first + kCount); ++i) to[i] = from[i];
  } else {
    float values[kCount];
    load_chunk<kPacked>(from, first, cols, values);
    store_chunk<kPacked>(to, first, cols, values);
  }
}

}  // namespace

void add(Vector y, ConstVector x, cudaStream_t stream) { add_signed("add", y, x, 1.0f, stream); }

void subtract(Vector y, ConstVector x, cudaStream_t stream) { add_signed("subtract", y, x, -1.0f, stream); }

void fill_zero(Vector y, cudaStream_t stream) {
  if (y.size == 0) return;
  check(cudaMemsetAsync(y.data, 0, static_cast<std::size_t>(y.size) * size_of(y.dtype), stream), "fill_zero");
}

void copy(ConstMatrix x, Matrix y, cudaStream_t stream) {
  dispatch(x.dtype, [&](auto from) {
    dispatch(y.dtype, [&](auto to) {
      using From = decltype(from);
      using To = decltype(to);
      const auto* const source = static_cast<const From*>(x.data);
      auto* const target = static_cast<To*>(y.data);
      const auto [grid, columns] = row_grid(x.rows, (x.cols + kCopied<From, To> - 1) / kCopied<From, To>);
      with_bool(is_packed(source, x.stride) && is_packed(target, y.stride),
                [&, &g = grid, c = columns](auto packed) {
                  launch("copy", copy_kernel<packed(), From, To>, g, stream, source, x.stride, target,
                         y.stride, x.rows, x.cols, c);
                });
    });
  });
}

}  // namespace cartan::kernels
