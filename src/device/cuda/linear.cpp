#include "device/cuda/linear.hpp"

#include <algorithm>

#include "cartan/core/error.hpp"
#include "device/cuda/fold.hpp"
#include "kernels/move.hpp"
#include "kernels/sums.hpp"

namespace cartan::device::cuda {
namespace {

/// out = out * accumulate + rows op(w) + bias, one product a sequence.
void multiply_rows(Gemm& gemm, ConstMatrix rows, ConstMatrix w, bool transposes_w, ConstVector bias,
                   Matrix out, bool accumulate, SequenceShape shape, const LinearRoom& room,
                   cudaStream_t stream) {
  // The library adds a bias of the result's type only; another one is there before the product.
  if (bias.data != nullptr && bias.dtype != out.dtype) {
    CARTAN_ASSERT(!accumulate);
    kernels::copy({bias.data, bias.dtype, out.rows, out.cols, 0}, out, stream);
    bias = {};
    accumulate = true;
  }
  Product product;
  product.left = rows.row_block(0, shape.length);
  product.right = w;
  product.out = out.row_block(0, shape.length);
  product.bias = bias;
  product.transposes_right = transposes_w;
  product.accumulates = accumulate;
  product.batch = shape.sequences;
  product.left_step = shape.length * rows.stride;
  product.out_step = shape.length * out.stride;
  if (shape.tokens() > 0) gemm.multiply(product, room.gemm, stream);
}

/// The fold of a block of rows of a weight's gradient. Value i of the stack lies in slot i where there is
/// one, else in scratch memory: the first addition of a leaf is the product's own accumulation, the further
/// ones are kernels.
class BlockFold {
 public:
  BlockFold(const GradientView& dw, Index first, Index rows, Index cols, const LinearRoom& room)
      : dw_(dw), first_(first * cols), rows_(rows), cols_(cols), room_(room) {}

  void run(Gemm& gemm, const Product& leaf, Index step_left, Index step_right, cudaStream_t stream) {
    int depth = dw_.plan->depth_before;
    for (std::size_t s = 0; s < dw_.plan->merges.size(); ++s) {
      int merges = dw_.plan->merges[s];
      Product product = leaf;
      product.left.data = advance(leaf.left.data, leaf.left.dtype, static_cast<Index>(s) * step_left);
      product.right.data = advance(leaf.right.data, leaf.right.dtype, static_cast<Index>(s) * step_right);
      product.accumulates = merges > 0;
      if (merges == 0) ++depth;
      product.out = as_matrix(value(depth - 1), DType::f32, rows_, cols_);
      gemm.multiply(product, room_.gemm, stream);
      for (; merges > 1; --merges, --depth)
        kernels::add({value(depth - 2), DType::f32, rows_ * cols_},
                     Vector{value(depth - 1), DType::f32, rows_ * cols_}, stream);
    }
    CARTAN_ASSERT(depth == dw_.plan->depth_after);
  }

 private:
  float* value(int depth) const {
    const auto slots = static_cast<int>(dw_.slots.size());
    if (depth < slots) return dw_.slots[static_cast<std::size_t>(depth)] + dw_.offset + first_;
    return room_.leaves.as<float>() + (depth - slots) * kLeafPiece;
  }

  const GradientView& dw_;
  Index first_, rows_, cols_;
  const LinearRoom& room_;
};

/// Values of the stack that have no slot, at most at a time.
int values_without_slot(const GradientView& view) {
  int depth = view.plan->depth_before, most = depth;
  for (const int merges : view.plan->merges) {
    depth += merges == 0 ? 1 : 1 - merges;
    most = std::max(most, depth);
  }
  return most - static_cast<int>(view.slots.size());
}

}  // namespace

void linear_forward(Gemm& gemm, ConstMatrix x, ConstMatrix w, ConstVector bias, Matrix y, bool accumulate,
                    SequenceShape shape, const LinearRoom& room, cudaStream_t stream) {
  multiply_rows(gemm, x, w, true, bias, y, accumulate, shape, room, stream);
}

void linear_backward_input(Gemm& gemm, ConstMatrix dy, ConstMatrix w, Matrix dx, bool accumulate,
                           SequenceShape shape, const LinearRoom& room, cudaStream_t stream) {
  // Codes of w come transposed.
  multiply_rows(gemm, dy, w, has_8_bits(w.dtype), {}, dx, accumulate, shape, room, stream);
}

void linear_backward_weight(Gemm& gemm, ConstMatrix dy, ConstMatrix x, SequenceShape shape,
                            const GradientView& dw, const GradientView& dbias, const LinearRoom& room,
                            cudaStream_t stream) {
  // Codes come transposed.
  const bool has_codes = has_8_bits(dy.dtype);
  const Index n = has_codes ? dy.rows : dy.cols, k = has_codes ? x.rows : x.cols;
  if (values_without_slot(dw) > kLeafPieces)
    throw ConfigError(
        "a micro-batch of {} sequences needs {} partial sums of a gradient at a time, the cuda device has "
        "room for "
        "{}: use a smaller batch.micro, a power of two",
        shape.sequences, values_without_slot(dw), kLeafPieces);
  Index rows = std::max<Index>(1, kLeafPiece / std::max<Index>(1, k));
  if (has_codes) rows -= rows % 16;  // fits_fp8 leaves some
  for (Index first = 0; first < n; first += rows) {
    const Index count = std::min(rows, n - first);
    Product leaf;
    if (has_codes) {
      leaf.left = dy.row_block(first, count).col_block(0, shape.length);
      leaf.right = x.col_block(0, shape.length);
      leaf.transposes_right = true;
    } else {
      leaf.left = {advance(dy.data, dy.dtype, first), dy.dtype, shape.length, count, dy.stride};
      leaf.right = {x.data, x.dtype, shape.length, k, x.stride};
      leaf.transposes_left = true;
    }
    const Index step_left = has_codes ? shape.length : shape.length * dy.stride;
    const Index step_right = has_codes ? shape.length : shape.length * x.stride;
    BlockFold(dw, first, count, k, room).run(gemm, leaf, step_left, step_right, stream);
  }
  if (dbias) kernels::fold_columns(dy, shape, dbias, room.kernels, stream);
}

}  // namespace cartan::device::cuda
