// Views of device memory: who owns the bytes is elsewhere, views are passed by value. The element type is a
// value, not a template parameter, so that one table of operations serves every dtype and device.
#pragma once

#include <span>

#include "cartan/core/canonical_tree.hpp"
#include "cartan/core/types.hpp"

namespace cartan::device {

/// Row-major, `stride` elements from row to row (stride >= cols). On `sim` the pointer is never followed.
struct Matrix {
  void* data = nullptr;
  DType dtype = DType::f32;
  Index rows = 0, cols = 0, stride = 0;

  Matrix row_block(Index begin, Index count) const;
  Matrix col_block(Index begin, Index count) const;
};

struct ConstMatrix {
  const void* data = nullptr;
  DType dtype = DType::f32;
  Index rows = 0, cols = 0, stride = 0;
  const float* factor = nullptr;  ///< of 8-bit types, in device memory: the elements are the codes times it

  ConstMatrix() = default;
  ConstMatrix(const void* data_, DType dtype_, Index rows_, Index cols_, Index stride_)
      : data(data_), dtype(dtype_), rows(rows_), cols(cols_), stride(stride_) {}
  ConstMatrix(const Matrix& m)  // NOLINT(google-explicit-constructor): a view to read is always allowed
      : data(m.data), dtype(m.dtype), rows(m.rows), cols(m.cols), stride(m.stride) {}
  ConstMatrix row_block(Index begin, Index count) const;
  ConstMatrix col_block(Index begin, Index count) const;
};

/// Contiguous. data == nullptr means "not there" where an operation allows that.
struct Vector {
  void* data = nullptr;
  DType dtype = DType::f32;
  Index size = 0;

  Vector slice(Index begin, Index count) const;
};

struct ConstVector {
  const void* data = nullptr;
  DType dtype = DType::f32;
  Index size = 0;

  ConstVector() = default;
  ConstVector(const void* data_, DType dtype_, Index size_) : data(data_), dtype(dtype_), size(size_) {}
  ConstVector(const Vector& v)  // NOLINT(google-explicit-constructor)
      : data(v.data), dtype(v.dtype), size(v.size) {}
  ConstVector slice(Index begin, Index count) const;
};

/// How a tensor gets into 8 bits: three numbers in device memory.
struct Fp8Scale {
  const float* scale = nullptr;    ///< multiplies the tensor before it is rounded
  const float* inverse = nullptr;  ///< the ConstMatrix::factor of the codes
  float* amax = nullptr;           ///< becomes the largest magnitude met, if that is larger
};

inline Matrix as_matrix(void* data, DType dtype, Index rows, Index cols) {
  return {data, dtype, rows, cols, cols};
}

/// Address `elements` further on.
void* advance(void* data, DType dtype, Index elements);
const void* advance(const void* data, DType dtype, Index elements);

/// A micro-batch: `sequences` rows of `length` tokens; activations have sequences * length rows.
struct SequenceShape {
  Index sequences = 0, length = 0;
  Index tokens() const { return sequences * length; }
};

/// Where the gradient of one parameter goes. The rank's partial sums lie in slots (core/canonical_tree.hpp);
/// the parameter starts at slots[i] + offset in each. An operation computes one leaf a sequence and folds it
/// into the slots as `plan` says; slots beyond plan->depth_before hold nothing yet and are overwritten.
struct GradientView {
  std::span<float* const> slots;
  Index offset = 0;
  const FoldPlan* plan = nullptr;

  GradientView at(Index further) const { return {slots, offset + further, plan}; }
  explicit operator bool() const { return plan != nullptr; }
};

}  // namespace cartan::device
