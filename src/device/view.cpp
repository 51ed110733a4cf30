// Sub-views. A view outside its parent is a defect of the caller.
#include "cartan/device/view.hpp"

#include "cartan/core/error.hpp"

namespace cartan::device {
namespace {

void check_block(Index begin, Index count, Index size, const char* what) {
  if (begin < 0 || count < 0 || begin + count > size) {
    throw InternalError("block of {} {}..{} lies outside the {} that exist", what, begin, begin + count,
                        size);
  }
}

template <class M>
M row_block_of(const M& m, Index begin, Index count) {
  check_block(begin, count, m.rows, "rows");
  M block = m;
  block.data = advance(m.data, m.dtype, begin * m.stride);
  block.rows = count;
  return block;
}

template <class M>
M col_block_of(const M& m, Index begin, Index count) {
  check_block(begin, count, m.cols, "columns");
  M block = m;
  block.data = advance(m.data, m.dtype, begin);
  block.cols = count;
  return block;
}

}  // namespace

// Through integers: addresses of `sim` are not pointers into anything, and nullptr stays nullptr at offset 0.
void* advance(void* data, DType dtype, Index elements) {
  return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(data) +
                                 static_cast<std::uintptr_t>(elements) * size_of(dtype));
}

const void* advance(const void* data, DType dtype, Index elements) {
  return advance(const_cast<void*>(data), dtype, elements);
}

Matrix Matrix::row_block(Index begin, Index count) const { return row_block_of(*this, begin, count); }
Matrix Matrix::col_block(Index begin, Index count) const { return col_block_of(*this, begin, count); }
ConstMatrix ConstMatrix::row_block(Index begin, Index count) const {
  return row_block_of(*this, begin, count);
}
ConstMatrix ConstMatrix::col_block(Index begin, Index count) const {
  return col_block_of(*this, begin, count);
}

Vector Vector::slice(Index begin, Index count) const {
  check_block(begin, count, size, "elements");
  return {advance(data, dtype, begin), dtype, count};
}

ConstVector ConstVector::slice(Index begin, Index count) const {
  check_block(begin, count, size, "elements");
  return {advance(data, dtype, begin), dtype, count};
}

}  // namespace cartan::device
