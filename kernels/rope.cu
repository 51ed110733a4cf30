// Rotary position embedding in place: channels (i, i + R) of each head turn by the angle of their row.
//
// A thread turns one chunk of pairs: it reads and writes 2 x 16 bytes of x, and reads as many angles (which
// all heads of a row share, so they come from the caches; in 16 bits two packs of each a thread, in requests
// that use half of each sector). For each turned element 2 reads and writes and 3 FLOPs: memory bound, 80 to
// 90 % of the peak bandwidth.
//
// The host does not know the positions. A position that the tables lack turns its row's channels into NaN,
// which the check of the loss finds.
// Source: Su et al. 2021, arXiv:2104.09864.
#include "rope.hpp"

#include "rows.cuh"

namespace cartan::kernels {
namespace {

struct Angles {
  const float *cosines, *sines;
  Index cosine_stride, sine_stride;
  Index positions, count;
};

template <bool kPacked, class T>
__global__ void __launch_bounds__(kRowThreads)
    rope_kernel(T* x, Index stride, int head_dim, const std::int32_t* positions, Angles angles, bool inverse,
                Index rows, unsigned heads, unsigned chunks, int columns_log2) {
  constexpr int kCount = kPack<T>;
  const RowPlace place(columns_log2);
  if (place.row >= rows || place.chunk >= heads * chunks) return;
  const auto chunk = static_cast<unsigned>(place.chunk);
  const Index first = static_cast<Index>(chunk % chunks) * kCount;
  T* const left = x + place.row * stride + static_cast<Index>(chunk / chunks) * head_dim;
  T* const right = left + angles.count;
  const Index position = positions[place.row];

  float cosine[kCount], sine[kCount], a[kCount], b[kCount];
  if (position >= 0 && position < angles.positions) {
    load_chunk<kPacked>(angles.cosines + position * angles.cosine_stride, first, angles.count, cosine);
    load_chunk<kPacked>(angles.sines + position * angles.sine_stride, first, angles.count, sine);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) cosine[i] = sine[i] = NAN;
  }
  load_chunk<kPacked>(left, first, angles.count, a);
  load_chunk<kPacked>(right, first, angles.count, b);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float s = inverse ? -sine[i] : sine[i];
    const float turned = a[i] * cosine[i] - b[i] * s;
    b[i] = b[i] * cosine[i] + a[i] * s;
    a[i] = turned;
  }
  store_chunk<kPacked>(left, first, angles.count, a);
  store_chunk<kPacked>(right, first, angles.count, b);
}

}  // namespace

void rope(Matrix x, Index head_dim, std::span<const std::int32_t> positions, ConstMatrix cosines,
          ConstMatrix sines, bool inverse, cudaStream_t stream) {
  dispatch(x.dtype, [&](auto type) {
    using T = decltype(type);
    auto* const data = static_cast<T*>(x.data);
    const Angles angles{static_cast<const float*>(cosines.data),
                        static_cast<const float*>(sines.data),
                        cosines.stride,
                        sines.stride,
                        cosines.rows,
                        cosines.cols};
    const Index heads = x.cols / head_dim, chunks = (angles.count + kPack<T> - 1) / kPack<T>;
    const RowGrid rows = row_grid(x.rows, heads * chunks);
    const bool all_packed = is_packed(data, x.stride) && is_packed(data, head_dim) &&
                            is_packed(data + angles.count, 0) && is_packed(angles.cosines, cosines.stride) &&
                            is_packed(angles.sines, sines.stride);
    with_bool(all_packed, [&](auto packed) {
      launch("rope", rope_kernel<packed(), T>, rows.grid, stream, data, x.stride, static_cast<int>(head_dim),
             positions.data(), angles, inverse, x.rows, static_cast<unsigned>(heads),
             static_cast<unsigned>(chunks), rows.columns_log2);
    });
  });
}

}  // namespace cartan::kernels
