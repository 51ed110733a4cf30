// Copies, conversions, sums: loops that only move memory.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/kernels_move.cpp"
#include <hwy/foreach_target.h>  // before highway.h
#include <hwy/highway.h>

#include <cmath>
#include <cstring>

#include "cartan/core/error.hpp"
#include "device/cpu/kernels.hpp"
#include "device/cpu/simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace cartan::device::cpu::HWY_NAMESPACE {
namespace {

template <class In, class Out>
void convert_elements(const In* in, Out* out, Index count) {
  for (Index i = 0; i < count; i += lanes()) store(load(in + i, count - i), out + i, count - i);
}

void convert_any(const void* in, DType in_type, void* out, DType out_type, Index count) {
  with_type(in_type, [&]<class In>() HWY_ATTR {
    with_type(out_type, [&]<class Out>() HWY_ATTR { convert_elements(as<In>(in), as<Out>(out), count); });
  });
}

void add_floats_any(const float* left, const float* right, float* out, Index count) {
  for (Index i = 0; i < count; i += lanes()) {
    store(hn::Add(load(left + i, count - i), load(right + i, count - i)), out + i, count - i);
  }
}

template <class T>
void add_row_typed(float* sum, const T* row, Index count) {
  for (Index i = 0; i < count; i += lanes()) {
    store(hn::Add(load(sum + i, count - i), load(row + i, count - i)), sum + i, count - i);
  }
}

void add_row_any(float* sum, const void* row, DType dtype, Index count) {
  with_type(dtype, [&]<class T>() HWY_ATTR { add_row_typed(sum, as<T>(row), count); });
}

template <class T>
void blend_row_typed(float* sum, float keep, const T* row, float take, Index count) {
  const VF kept = hn::Set(F(), keep), taken = hn::Set(F(), take);
  for (Index i = 0; i < count; i += lanes()) {
    const VF left = hn::Mul(load(sum + i, count - i), kept);
    store(hn::Add(left, hn::Mul(load(row + i, count - i), taken)), sum + i, count - i);
  }
}

void blend_row_any(float* sum, float keep, const void* row, float take, DType dtype, Index count) {
  with_type(dtype, [&]<class T>() HWY_ATTR { blend_row_typed(sum, keep, as<T>(row), take, count); });
}

template <class Part, class Out>
void sum_rows_typed(const Part* first, Index step, Index parts, const Out* residual, Out* out, Index count) {
  for (Index i = 0; i < count; i += lanes()) {
    VF sum = load(first + i, count - i);
    for (Index p = 1; p < parts; ++p) sum = hn::Add(sum, load(first + p * step + i, count - i));
    if (residual != nullptr) sum = hn::Add(load(residual + i, count - i), sum);
    store(sum, out + i, count - i);
  }
}

void sum_rows_any(const void* first, Index step, Index parts, DType part_type, const void* residual,
                  void* out, DType out_type, Index count) {
  with_type(part_type, [&]<class Part>() HWY_ATTR {
    with_type(out_type, [&]<class Out>() HWY_ATTR {
      sum_rows_typed(as<Part>(first), step, parts, as<Out>(residual), as<Out>(out), count);
    });
  });
}

template <class T>
bool finite_typed(const T* x, Index count) {
  // 0 * x is 0 for a finite x and NaN otherwise.
  VF sum = hn::Zero(F());
  for (Index i = 0; i < count; i += lanes()) {
    sum = hn::Add(sum, hn::Mul(hn::Zero(F()), load(x + i, count - i)));
  }
  return sum_lanes(sum) == 0.0f;
}

bool finite_any(const void* x, DType dtype, Index count) {
  return with_type(dtype, [&]<class T>() HWY_ATTR { return finite_typed(as<T>(x), count); });
}

/// Always 16 running sums, added up pairwise, so that the bits are the same for every vector length.
double square_sum_any(const float* x, Index count) {
  constexpr Index kSums = 16;
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> narrow;
  constexpr std::size_t kWidth = hn::MaxLanes(d), kVectors = kSums / kWidth;
  hn::Vec<decltype(d)> vectors[kVectors];
  for (auto& v : vectors) v = hn::Zero(d);
  const Index whole = count / kSums * kSums;
  for (Index i = 0; i < whole; i += kSums) {
    for (std::size_t j = 0; j < kVectors; ++j) {
      const auto value = hn::PromoteTo(d, hn::LoadU(narrow, x + i + static_cast<Index>(j * kWidth)));
      vectors[j] = hn::Add(vectors[j], hn::Mul(value, value));
    }
  }
  HWY_ALIGN double sums[kSums];
  for (std::size_t j = 0; j < kVectors; ++j) hn::Store(vectors[j], d, sums + j * kWidth);
  for (Index i = whole; i < count; ++i)
    sums[i - whole] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  for (Index half = kSums / 2; half > 0; half /= 2) {
    for (Index j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0];
}

template <class Y>
void store_rows(const float* tile, Index rows, Index cols, const float* bias, bool accumulate, Y* y,
                Index y_stride) {
  for (Index r = 0; r < rows; ++r, tile += cols, y += y_stride) {
    for (Index i = 0; i < cols; i += lanes()) {
      VF value = load(tile + i, cols - i);
      if (bias != nullptr) value = hn::Add(value, load(bias + i, cols - i));
      if (accumulate) value = hn::Add(load(y + i, cols - i), value);
      store(value, y + i, cols - i);
    }
  }
}

void store_tile_any(const float* tile, Index rows, Index cols, const float* bias, bool accumulate, void* y,
                    DType y_type, Index y_stride) {
  with_type(y_type,
            [&]<class Y>() HWY_ATTR { store_rows(tile, rows, cols, bias, accumulate, as<Y>(y), y_stride); });
}

}  // namespace
}  // namespace cartan::device::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cartan::device::cpu {

HWY_EXPORT(convert_any);
HWY_EXPORT(add_floats_any);
HWY_EXPORT(add_row_any);
HWY_EXPORT(blend_row_any);
HWY_EXPORT(sum_rows_any);
HWY_EXPORT(finite_any);
HWY_EXPORT(square_sum_any);
HWY_EXPORT(store_tile_any);

void convert(const void* in, DType in_type, void* out, DType out_type, Index count) {
  if (in_type == out_type) {
    std::memcpy(out, in, static_cast<std::size_t>(count) * size_of(in_type));
  } else {
    HWY_DYNAMIC_DISPATCH(convert_any)(in, in_type, out, out_type, count);
  }
}

void add_floats(const float* left, const float* right, float* out, Index count) {
  HWY_DYNAMIC_DISPATCH(add_floats_any)(left, right, out, count);
}

void add_row(float* sum, const void* row, DType dtype, Index count) {
  HWY_DYNAMIC_DISPATCH(add_row_any)(sum, row, dtype, count);
}

void blend_row(float* sum, float keep, const void* row, float take, DType dtype, Index count) {
  HWY_DYNAMIC_DISPATCH(blend_row_any)(sum, keep, row, take, dtype, count);
}

void sum_rows(const void* first, Index step, Index parts, DType part_type, const void* residual, void* out,
              DType out_type, Index count) {
  HWY_DYNAMIC_DISPATCH(sum_rows_any)(first, step, parts, part_type, residual, out, out_type, count);
}

bool finite(const void* x, DType dtype, Index count) {
  return HWY_DYNAMIC_DISPATCH(finite_any)(x, dtype, count);
}

double square_sum(const float* x, Index count) { return HWY_DYNAMIC_DISPATCH(square_sum_any)(x, count); }

void store_tile(const float* tile, Index rows, Index cols, const void* bias, DType bias_type, bool accumulate,
                void* y, DType y_type, Index y_stride) {
  constexpr Index kMaxCols = 1024;
  CARTAN_ASSERT(cols <= kMaxCols);
  alignas(64) float bias_floats[kMaxCols];
  if (bias != nullptr) convert(bias, bias_type, bias_floats, DType::f32, cols);
  HWY_DYNAMIC_DISPATCH(store_tile_any)
  (tile, rows, cols, bias != nullptr ? bias_floats : nullptr, accumulate, y, y_type, y_stride);
}

}  // namespace cartan::device::cpu
#endif
