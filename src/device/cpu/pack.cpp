// Copies blocks of a matrix into the layouts that the products want, converting 16-bit numbers to fp32 on the
// way.
//
// Transposing: a vector takes the same four (or eight) columns of a row in each of its 128-bit blocks, one
// row per block, by loads that broadcast; four such vectors are then transposed inside their blocks, where
// shuffles are cheap, and each result is a column of as many rows as a vector has floats.
#include <array>

#include "cartan/core/float8.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/pack.cpp"
#include <hwy/foreach_target.h>  // before highway.h
#include <hwy/highway.h>

#include "device/cpu/kernels.hpp"
#include "device/cpu/simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace cartan::device::cpu::HWY_NAMESPACE {
namespace {

template <class T>
void rows_typed(const T* in, Index in_stride, Index rows, Index cols, float* out, Index out_stride) {
  const Index n = lanes(), whole = cols / n * n;
  for (Index r = 0; r < rows; ++r, in += in_stride, out += out_stride) {
    for (Index c = 0; c < whole; c += n) store_full(load_full(in + c), out + c);
    if (whole < cols) store(load(in + whole, cols - whole), out + whole, cols - whole);
  }
}

float as_float(float value) { return value; }
template <class T>
float as_float(T value) {
  return to_float(value);
}

#if HWY_TARGET != HWY_SCALAR
/// Columns that transpose_block takes.
template <class T>
inline constexpr Index kBlockCols = 16 / sizeof(T);
template <>
inline constexpr Index kBlockCols<Float16> = 16;

/// A vector of D whose block b holds the elements at p + b * stride.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> gather_blocks(D d, const T* p, Index stride) {
  constexpr std::size_t kPerBlock = 16 / sizeof(T);
  auto v = hn::LoadDup128(d, p);
  for (std::size_t b = 1; b < hn::Lanes(d) / kPerBlock; ++b) {
    v = hn::IfThenElse(hn::FirstN(d, b * kPerBlock), v,
                       hn::LoadDup128(d, p + static_cast<Index>(b) * stride));
  }
  return v;
}

/// Four columns of lanes() rows.
HWY_INLINE void transpose_block(const float* in, Index in_stride, float* out, Index out_stride) {
  const F d;
  const auto v0 = gather_blocks(d, in, 4 * in_stride), v1 = gather_blocks(d, in + in_stride, 4 * in_stride);
  const auto v2 = gather_blocks(d, in + 2 * in_stride, 4 * in_stride);
  const auto v3 = gather_blocks(d, in + 3 * in_stride, 4 * in_stride);
  const auto low02 = hn::InterleaveLower(d, v0, v2), low13 = hn::InterleaveLower(d, v1, v3);
  const auto high02 = hn::InterleaveUpper(d, v0, v2), high13 = hn::InterleaveUpper(d, v1, v3);
  hn::StoreU(hn::InterleaveLower(d, low02, low13), d, out);
  hn::StoreU(hn::InterleaveUpper(d, low02, low13), d, out + out_stride);
  hn::StoreU(hn::InterleaveLower(d, high02, high13), d, out + 2 * out_stride);
  hn::StoreU(hn::InterleaveUpper(d, high02, high13), d, out + 3 * out_stride);
}

/// Two columns from the bits of four rows: a zero below each makes it a float.
HWY_INLINE void store_pair(hn::Vec<hn::Repartition<std::uint16_t, F>> columns, float* out, Index out_stride) {
  const F d;
  const hn::Repartition<std::uint16_t, F> d16;
  const auto zero = hn::Zero(d16);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d16, zero, columns)), d, out);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d16, zero, columns)), d, out + out_stride);
}

/// Eight columns of lanes() rows.
HWY_INLINE void transpose_block(const BFloat16* numbers, Index in_stride, float* out, Index out_stride) {
  const hn::Repartition<std::uint16_t, F> d;
  const std::uint16_t* const in = &numbers->bits;
  const auto v0 = gather_blocks(d, in, 4 * in_stride), v1 = gather_blocks(d, in + in_stride, 4 * in_stride);
  const auto v2 = gather_blocks(d, in + 2 * in_stride, 4 * in_stride);
  const auto v3 = gather_blocks(d, in + 3 * in_stride, 4 * in_stride);
  const auto low02 = hn::InterleaveLower(d, v0, v2), low13 = hn::InterleaveLower(d, v1, v3);
  const auto high02 = hn::InterleaveUpper(d, v0, v2), high13 = hn::InterleaveUpper(d, v1, v3);
  store_pair(hn::InterleaveLower(d, low02, low13), out, out_stride);
  store_pair(hn::InterleaveUpper(d, low02, low13), out + 2 * out_stride, out_stride);
  store_pair(hn::InterleaveLower(d, high02, high13), out + 4 * out_stride, out_stride);
  store_pair(hn::InterleaveUpper(d, high02, high13), out + 6 * out_stride, out_stride);
}

/// 16 columns of lanes() rows, converted first: fp16 has no shortcut like that of bf16.
HWY_INLINE void transpose_block(const Float16* in, Index in_stride, float* out, Index out_stride) {
  constexpr Index kCols = kBlockCols<Float16>;
  HWY_ALIGN float block[kMaxLanes * kCols];
  for (Index r = 0; r < lanes(); ++r) {
    for (Index c = 0; c < kCols; c += lanes()) {
      store_full(load_full(in + r * in_stride + c), block + r * kCols + c);
    }
  }
  for (Index c = 0; c < kCols; c += kBlockCols<float>) {
    transpose_block(block + c, kCols, out + c * out_stride, out_stride);
  }
}
#endif

template <class T>
void transposed_typed(const T* in, Index in_stride, Index rows, Index cols, float* out, Index out_stride) {
  Index whole_rows = 0, whole_cols = 0;
#if HWY_TARGET != HWY_SCALAR
  constexpr Index kCols = kBlockCols<T>;
  whole_rows = rows / lanes() * lanes();
  whole_cols = cols / kCols * kCols;
  for (Index r = 0; r < whole_rows; r += lanes()) {
    for (Index c = 0; c < whole_cols; c += kCols) {
      transpose_block(in + r * in_stride + c, in_stride, out + c * out_stride + r, out_stride);
    }
  }
#endif
  for (Index r = 0; r < rows; ++r) {
    for (Index c = r < whole_rows ? whole_cols : 0; c < cols; ++c) {
      out[c * out_stride + r] = as_float(in[r * in_stride + c]);
    }
  }
}

void rows_any(const void* in, DType dtype, Index in_stride, Index rows, Index cols, float* out,
              Index out_stride) {
  with_type(dtype,
            [&]<class T>() HWY_ATTR { rows_typed(as<T>(in), in_stride, rows, cols, out, out_stride); });
}

void transposed_any(const void* in, DType dtype, Index in_stride, Index rows, Index cols, float* out,
                    Index out_stride) {
  with_type(dtype,
            [&]<class T>() HWY_ATTR { transposed_typed(as<T>(in), in_stride, rows, cols, out, out_stride); });
}

}  // namespace
}  // namespace cartan::device::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cartan::device::cpu {

HWY_EXPORT(rows_any);
HWY_EXPORT(transposed_any);

namespace {

template <class Code>
constexpr std::array<float, 256> values_of_codes() {
  std::array<float, 256> values{};
  for (unsigned code = 0; code < values.size(); ++code)
    values[code] = to_float(Code{static_cast<std::uint8_t>(code)});
  return values;
}
constexpr auto kE4M3 = values_of_codes<Float8E4M3>();
constexpr auto kE5M2 = values_of_codes<Float8E5M2>();

/// out[r * row_step + c * col_step] = in[r * in_stride + c]: by a table, because few CPUs know 8-bit numbers.
void decode(const void* in, DType dtype, Index in_stride, Index rows, Index cols, float* out, Index row_step,
            Index col_step) {
  const auto& table = dtype == DType::e4m3 ? kE4M3 : kE5M2;
  const auto* codes = static_cast<const std::uint8_t*>(in);
  for (Index r = 0; r < rows; ++r, codes += in_stride)
    for (Index c = 0; c < cols; ++c) out[r * row_step + c * col_step] = table[codes[c]];
}

}  // namespace

void pack_rows(const void* in, DType dtype, Index in_stride, Index rows, Index cols, float* out,
               Index out_stride) {
  if (has_8_bits(dtype)) return decode(in, dtype, in_stride, rows, cols, out, out_stride, 1);
  HWY_DYNAMIC_DISPATCH(rows_any)(in, dtype, in_stride, rows, cols, out, out_stride);
}

void pack_transposed(const void* in, DType dtype, Index in_stride, Index rows, Index cols, float* out,
                     Index out_stride) {
  if (has_8_bits(dtype)) return decode(in, dtype, in_stride, rows, cols, out, 1, out_stride);
  HWY_DYNAMIC_DISPATCH(transposed_any)(in, dtype, in_stride, rows, cols, out, out_stride);
}

}  // namespace cartan::device::cpu
#endif
