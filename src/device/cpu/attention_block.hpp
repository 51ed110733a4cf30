// The inner loops of attention, compiled once for each instruction set (Highway's foreach_target): a register
// tiled product of matrices that lie in cache, 2^x, transposes, packing. One product kernel serves all seven
// products of attention, because queries are lanes: scores and their gradients are [keys, 48 queries].
//
// Numerics: fp32; each element of a product is one chain of fused multiply-adds in order of k, so its bits do
// not depend on the shape of the register tile, nor on AVX2 or AVX-512. (libxsmm's kernels are as fast, but
// the order of their sums depends on the shape: decoding would not have the bits of the full pass.)

// Highway's form of #pragma once: a file that includes this one is compiled again for each instruction set.
#if defined(CARTAN_DEVICE_CPU_ATTENTION_BLOCK_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef CARTAN_DEVICE_CPU_ATTENTION_BLOCK_HPP
#undef CARTAN_DEVICE_CPU_ATTENTION_BLOCK_HPP
#else
#define CARTAN_DEVICE_CPU_ATTENTION_BLOCK_HPP
#endif

#include <hwy/highway.h>

#include "device/cpu/attention_layout.hpp"
#include "device/cpu/simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace cartan::device::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;
using Ints = hn::RebindToSigned<Floats>;
using FloatVec = hn::Vec<Floats>;

/// A(r, k) of a product's left factor lies at data[r * row_step + k * k_step].
struct LeftFactor {
  const float* data;
  Index row_step, k_step;
};

/// kRows x kVectors vectors of C in registers. A's element is broadcast, B's and C's rows are vectors.
/// kStride is the stride of B and C where it is known, which spares the addresses their arithmetic.
template <Index kStride, int kRows, int kVectors>
HWY_INLINE void product_tile(LeftFactor a, const float* HWY_RESTRICT b, Index b_stride, float* HWY_RESTRICT c,
                             Index c_stride, Index depth, bool accumulate) {
  const Floats d;
  if constexpr (kStride != 0) b_stride = c_stride = kStride;
  const Index lanes = static_cast<Index>(hn::Lanes(d));
  FloatVec sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = accumulate ? hn::Load(d, c + r * c_stride + v * lanes) : hn::Zero(d);
    }
  }
  for (Index k = 0; k < depth; ++k) {
    FloatVec row[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) row[v] = hn::Load(d, b + k * b_stride + v * lanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const FloatVec factor = hn::Set(d, a.data[r * a.row_step + k * a.k_step]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(factor, row[v], sum[r][v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) hn::Store(sum[r][v], d, c + r * c_stride + v * lanes);
  }
}

/// All rows of C for kVectors vectors of its columns.
template <Index kStride, int kVectors>
HWY_NOINLINE void product_columns(Index rows, LeftFactor a, const float* b, Index b_stride, float* c,
                                  Index c_stride, Index depth, bool accumulate) {
  // As many accumulators as the registers hold (32 in AVX-512, else 16) beside the row of B and the factor.
  constexpr int kTall = HWY_TARGET <= HWY_AVX3 ? (kVectors == 3 ? 8 : 12) : 4;
  Index r = 0;
  const auto row_tiles = [&]<int kRows>() HWY_ATTR {
    for (; r + kRows <= rows; r += kRows) {
      product_tile<kStride, kRows, kVectors>({a.data + r * a.row_step, a.row_step, a.k_step}, b, b_stride,
                                             c + r * c_stride, c_stride, depth, accumulate);
    }
  };
  row_tiles.template operator()<kTall>();
  row_tiles.template operator()<4>();
  row_tiles.template operator()<1>();
}

/// C = A B or C += A B.   B [depth, cols], C [rows, cols], rows on vector boundaries, cols a multiple of 16.
/// Both strides are kStride unless that is 0.
template <Index kStride = 0>
inline void product(Index rows, Index cols, Index depth, LeftFactor a, const float* b, Index b_stride,
                    float* c, Index c_stride, bool accumulate) {
  const Index lanes = static_cast<Index>(hn::Lanes(Floats()));
  for (Index at = 0; at < cols;) {
    const Index left = (cols - at) / lanes;
    if (left % 3 == 0 || left >= 5) {
      product_columns<kStride, 3>(rows, a, b + at, b_stride, c + at, c_stride, depth, accumulate);
      at += 3 * lanes;
    } else if (left >= 2) {
      product_columns<kStride, 2>(rows, a, b + at, b_stride, c + at, c_stride, depth, accumulate);
      at += 2 * lanes;
    } else {
      product_columns<kStride, 1>(rows, a, b + at, b_stride, c + at, c_stride, depth, accumulate);
      at += lanes;
    }
  }
}

/// 2^x for x <= 127, within 2.1 ulp, exactly 1 at 0. Below -80 it is 2^-80: nothing in a sum that holds a 1,
/// and its products do not become denormal numbers, which are slow. NaN stays NaN. x = n + r with whole n and
/// |r| <= 1/2; a minimax polynomial gives 2^r, n is added to its exponent.
HWY_INLINE FloatVec exp2_clamped(FloatVec x) {
  const Floats d;
  const Ints di;
  x = hn::Max(hn::Set(d, -80.0f), x);              // in this order a NaN passes
  const FloatVec shift = hn::Set(d, 12582912.0f);  // 1.5 * 2^23: the low bits of the sum are n
  const FloatVec shifted = hn::Add(x, shift);
  const FloatVec r = hn::Sub(x, hn::Sub(shifted, shift));
  FloatVec p = hn::Set(d, 1.32647286e-3f);
  p = hn::MulAdd(p, r, hn::Set(d, 9.67151372e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 5.55073375e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 2.40222421e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 6.93146978e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(di, shifted));
  return hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
}

/// Which lanes of a tile, from `lane` on, see key `key`.
HWY_INLINE hn::Mask<Floats> visible_lanes(const TileKeys& keys, Index lane, Index key) {
  const Ints di;
  const auto k = hn::Set(di, static_cast<std::int32_t>(key));
  const auto start = hn::Load(di, keys.start.data() + lane);
  const auto last = hn::Load(di, keys.last.data() + lane);
  return hn::RebindMask(Floats(), hn::Not(hn::Or(hn::Lt(k, start), hn::Gt(k, last))));
}

/// out = in^T.   in [rows, cols], out [cols, rows], both sizes multiples of 4.
inline void transpose(const float* HWY_RESTRICT in, Index in_stride, Index rows, Index cols,
                      float* HWY_RESTRICT out, Index out_stride) {
#if HWY_TARGET == HWY_SCALAR
  for (Index r = 0; r < rows; ++r) {
    for (Index c = 0; c < cols; ++c) out[c * out_stride + r] = in[r * in_stride + c];
  }
#else
  const hn::FixedTag<float, 4> d;
  for (Index r = 0; r < rows; r += 4) {
    for (Index c = 0; c < cols; c += 4) {
      const float* from = in + r * in_stride + c;
      const auto r0 = hn::LoadU(d, from), r1 = hn::LoadU(d, from + in_stride);
      const auto r2 = hn::LoadU(d, from + 2 * in_stride), r3 = hn::LoadU(d, from + 3 * in_stride);
      const auto low01 = hn::InterleaveLower(d, r0, r1), low23 = hn::InterleaveLower(d, r2, r3);
      const auto high01 = hn::InterleaveUpper(d, r0, r1), high23 = hn::InterleaveUpper(d, r2, r3);
      float* to = out + c * out_stride + r;
      hn::StoreU(hn::ConcatLowerLower(d, low23, low01), d, to);
      hn::StoreU(hn::ConcatUpperUpper(d, low23, low01), d, to + out_stride);
      hn::StoreU(hn::ConcatLowerLower(d, high23, high01), d, to + 2 * out_stride);
      hn::StoreU(hn::ConcatUpperUpper(d, high23, high01), d, to + 3 * out_stride);
    }
  }
#endif
}

/// count elements from `offset` of a view, as fp32.
inline void load_elements(const ConstMatrix& view, Index offset, Index count, float* HWY_RESTRICT out) {
  with_type(view.dtype, [&]<class T>() HWY_ATTR {
    const T* const in = as<T>(view.data) + offset;
    for (Index i = 0; i < count; i += lanes()) store(load(in + i, count - i), out + i, count - i);
  });
}
inline void store_elements(const float* HWY_RESTRICT in, Index count, const Matrix& view, Index offset) {
  with_type(view.dtype, [&]<class T>() HWY_ATTR {
    T* const out = as<T>(view.data) + offset;
    for (Index i = 0; i < count; i += lanes()) store(load(in + i, count - i), out + i, count - i);
  });
}

/// Rows of a tile as [48, width]; what lies outside is 0.
inline void load_query_rows(const AttentionCall& call, HeadGroup at, const TileKeys& keys,
                            const ConstMatrix& view, float* out) {
  const Index width = call.width(), head_dim = call.shape.head_dim;
  RowWalk row(call, at, keys.first_row);
  for (Index i = 0; i < keys.rows; ++i, row.next()) {
    load_elements(view, row.offset(view.stride), head_dim, out + i * width);
    std::fill(out + i * width + head_dim, out + (i + 1) * width, 0.0f);
  }
  std::fill(out + keys.rows * width, out + kTileRows * width, 0.0f);
}
inline void store_query_rows(const AttentionCall& call, HeadGroup at, const TileKeys& keys, const float* in,
                             const Matrix& view) {
  RowWalk row(call, at, keys.first_row);
  for (Index i = 0; i < keys.rows; ++i, row.next()) {
    store_elements(in + i * call.width(), call.shape.head_dim, view, row.offset(view.stride));
  }
}

/// Asks for the rows of a key block that load_key_rows will read soon: strided rows defeat the hardware's
/// prefetcher.
inline void prefetch_key_rows(const AttentionCall& call, HeadGroup at, Index block, const ConstMatrix& view) {
  const Index row_bytes = call.shape.head_dim * static_cast<Index>(size_of(view.dtype));
  const PresentKeys present = present_keys(call, block);
  for (Index j = present.begin; j < present.end; ++j) {
    const auto* row = static_cast<const std::byte*>(view.data) +
                      key_offset(call, at, block + j, view.stride) * static_cast<Index>(size_of(view.dtype));
    for (Index byte = 0; byte < row_bytes; byte += 64) __builtin_prefetch(row + byte);
  }
}

/// Rows of a key block as [64, width]; what lies outside is 0.
inline void load_key_rows(const AttentionCall& call, HeadGroup at, Index block, const ConstMatrix& view,
                          float* out) {
  const Index width = call.width(), head_dim = call.shape.head_dim;
  const PresentKeys present = present_keys(call, block);
  std::fill(out, out + present.begin * width, 0.0f);
  for (Index j = present.begin; j < present.end; ++j) {
    load_elements(view, key_offset(call, at, block + j, view.stride), head_dim, out + j * width);
    std::fill(out + j * width + head_dim, out + (j + 1) * width, 0.0f);
  }
  std::fill(out + present.end * width, out + kKeyBlock * width, 0.0f);
}
inline void store_key_rows(const AttentionCall& call, HeadGroup at, Index block, const float* in,
                           const Matrix& view) {
  const PresentKeys present = present_keys(call, block);
  for (Index j = present.begin; j < present.end; ++j) {
    store_elements(in + j * call.width(), call.shape.head_dim, view,
                   key_offset(call, at, block + j, view.stride));
  }
}

inline void scale_all(float* data, Index count, float factor) {
  for (Index i = 0; i < count; ++i) data[i] *= factor;
}

}  // namespace cartan::device::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
