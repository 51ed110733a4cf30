// A task computes tiles that share their right factor, so that it is packed once for all of them.
#include "device/cpu/linear.hpp"

#include <algorithm>
#include <array>

#include "cartan/core/error.hpp"
#include "cartan/core/narrow.hpp"
#include "device/cpu/fold.hpp"
#include "device/cpu/kernels.hpp"
#include "device/cpu/partition.hpp"

namespace cartan::device::cpu {
namespace {

/// Cuts 0 ... size-1 into pieces of one size (the last may be shorter).
struct Cut {
  Index size = 0, piece = 0;
  Cut(Index size_, Index target, Index multiple) : size(size_) {
    const Index pieces = std::max<Index>(1, ceil_div(size, target));
    piece = ceil_div(ceil_div(size, pieces), multiple) * multiple;
  }
  Index count() const { return piece == 0 ? 0 : ceil_div(size, piece); }
  Index begin(Index i) const { return i * piece; }
  Index length(Index i) const { return std::min(piece, size - begin(i)); }
};

// Short sequences get smaller tiles: more of them to share among threads.
constexpr Index kLongSequence = 1024;
constexpr Index kRowMultiple = 8, kColMultiple = 64;
/// Row tiles that a task computes with one packed right factor.
constexpr Index kMaxGroup = 8;

Cut row_cut(Index length) {
  return {length, length >= kLongSequence ? Gemm::kMaxRows : Gemm::kMaxRows / 2, kRowMultiple};
}

Cut col_cut(Index length, Index cols) {
  return {cols, length >= kLongSequence ? Gemm::kMaxCols : Index{256}, kColMultiple};
}

/// What the products of two matrices of codes are multiplied by; 1 without codes.
float factor_of(const ConstMatrix& a, const ConstMatrix& b) {
  return has_8_bits(a.dtype) ? *a.factor * *b.factor : 1.0f;
}

/// Rounding a factor of 1 away is no change.
void multiply_floats(float* values, Index count, float factor) {
  if (factor == 1.0f) return;
  for (Index i = 0; i < count; ++i) values[i] *= factor;
}

/// y = y * accumulate + factor * x op(w) + bias for every sequence. b is the whole right factor [depth,
/// y.cols].
void multiply_rows(const Context& context, Gemm& gemm, ConstMatrix x, const Factor& b, float factor,
                   ConstVector bias, Matrix y, bool accumulate, SequenceShape shape) {
  const Index depth = x.cols;
  const Cut rows = row_cut(shape.length), cols = col_cut(shape.length, y.cols);
  const Index row_tiles = shape.sequences * rows.count();
  if (row_tiles == 0 || cols.count() == 0) return;

  const std::size_t packing = gemm.scratch_bytes(rows.piece, cols.piece, depth);
  const Index tile_floats = rows.piece * cols.piece;
  const auto room = static_cast<Index>((kScratchBytes - packing) / sizeof(float)) / tile_floats;
  // Enough tasks for every thread to have a few, then as many tiles a task as fit. Any grouping gives the
  // same bits.
  const Index wanted = std::max<Index>(1, row_tiles * cols.count() / (4 * context.pool.size()));
  const Index group = std::clamp<Index>(wanted, 1, std::min({room, kMaxGroup, row_tiles}));
  CARTAN_ASSERT(room >= 1);
  const Index groups = ceil_div(row_tiles, group);

  context.pool.run(groups * cols.count(), [&](Index task, int thread) {
    const Index col = task / groups, first = task % groups * group;
    const Index count = std::min(group, row_tiles - first);
    auto* const scratch = context.scratch<std::byte>(thread);
    auto* const tiles_c = reinterpret_cast<float*>(scratch + packing);
    const Index n0 = cols.begin(col), n = cols.length(col);
    std::array<RowTile, kMaxGroup> tiles;
    const auto row_of = [&](Index i) {
      const Index tile = first + i;
      return tile / rows.count() * shape.length + rows.begin(tile % rows.count());
    };
    for (Index i = 0; i < count; ++i) {
      const Factor a{advance(x.data, x.dtype, row_of(i) * x.stride), x.dtype, x.stride, false};
      tiles[static_cast<std::size_t>(i)] = {a, rows.length((first + i) % rows.count()),
                                            tiles_c + i * tile_floats};
    }
    const Factor piece{advance(b.data, b.dtype, b.transposed ? n0 * b.stride : n0), b.dtype, b.stride,
                       b.transposed};
    gemm.multiply(thread, scratch, {tiles.data(), static_cast<std::size_t>(count)}, piece, n, depth);
    for (Index i = 0; i < count; ++i) {
      const RowTile& tile = tiles[static_cast<std::size_t>(i)];
      multiply_floats(tile.c, tile.rows * n, factor);
      const void* tile_bias = bias.data == nullptr ? nullptr : advance(bias.data, bias.dtype, n0);
      store_tile(tile.c, tile.rows, n, tile_bias, bias.dtype, accumulate,
                 advance(y.data, y.dtype, row_of(i) * y.stride + n0), y.dtype, y.stride);
    }
  });
}

/// Tile of a weight gradient [rows, cols]: at least some tasks where the parameter is small.
struct WeightCut {
  Cut rows, cols;
  WeightCut(Index n, Index k) : rows(n, Gemm::kMaxRows, kColMultiple), cols(k, Gemm::kMaxCols, kColMultiple) {
    constexpr Index kEnough = 4, kSmallest = 128;
    Index row_target = Gemm::kMaxRows, col_target = Gemm::kMaxCols;
    while (rows.count() * cols.count() < kEnough && (row_target > kSmallest || col_target > kSmallest)) {
      if (cols.piece >= rows.piece) {
        col_target = std::max(kSmallest, std::min(col_target, cols.piece) / 2);
      } else {
        row_target = std::max(kSmallest, std::min(row_target, rows.piece) / 2);
      }
      const Cut new_rows(n, row_target, kColMultiple), new_cols(k, col_target, kColMultiple);
      if (new_rows.piece == rows.piece && new_cols.piece == cols.piece) break;
      rows = new_rows;
      cols = new_cols;
    }
  }
};

void weight_gradient(const Context& context, Gemm& gemm, ConstMatrix dy, ConstMatrix x, SequenceShape shape,
                     const GradientView& dw) {
  // Codes come transposed.
  const bool has_codes = has_8_bits(dy.dtype);
  const Index n = has_codes ? dy.rows : dy.cols, k = has_codes ? x.rows : x.cols;
  const auto factor_at = [&](const ConstMatrix& m, Index token, Index column) {
    return advance(m.data, m.dtype, has_codes ? column * m.stride + token : token * m.stride + column);
  };
  const WeightCut cut(n, k);
  if (cut.rows.count() == 0 || cut.cols.count() == 0) return;
  const std::size_t packing = gemm.scratch_bytes(cut.rows.piece, cut.cols.piece, shape.length);
  const int buffers = fold_buffers(*dw.plan);
  const FoldTile largest{0, cut.rows.piece, cut.cols.piece, k};
  const std::size_t needed =
      packing + static_cast<std::size_t>(buffers * TileFold::buffer_floats(largest)) * sizeof(float);
  if (needed > kScratchBytes) {
    throw ConfigError(
        "a micro-batch of {} sequences needs {} bytes of scratch a thread, {} are set aside: use a "
        "smaller batch.micro",
        shape.sequences, needed, kScratchBytes);
  }

  context.pool.run(cut.rows.count() * cut.cols.count(), [&](Index task, int thread) {
    const Index row = task / cut.cols.count(), col = task % cut.cols.count();
    const Index n0 = cut.rows.begin(row), k0 = cut.cols.begin(col);
    const FoldTile tile{n0 * k + k0, cut.rows.length(row), cut.cols.length(col), k};
    auto* const scratch = context.scratch<std::byte>(thread);
    TileFold fold(dw, tile, reinterpret_cast<float*>(scratch + packing));
    for (Index s = 0; s < shape.sequences; ++s) {
      const Index first = s * shape.length;
      const Factor a{factor_at(dy, first, n0), dy.dtype, dy.stride, !has_codes};
      const Factor b{factor_at(x, first, k0), x.dtype, x.stride, has_codes};
      const RowTile product{a, tile.rows, fold.leaf()};
      gemm.multiply(thread, scratch, {&product, 1}, b, tile.cols, shape.length);
      multiply_floats(product.c, tile.size(), factor_of(dy, x));
      fold.push_leaf();
    }
    fold.finish();
  });
}

}  // namespace

void linear_forward(const Context& context, Gemm& gemm, ConstMatrix x, ConstMatrix w, ConstVector bias,
                    Matrix y, bool accumulate, SequenceShape shape) {
  multiply_rows(context, gemm, x, {w.data, w.dtype, w.stride, true}, factor_of(x, w), bias, y, accumulate,
                shape);
}

void linear_backward_input(const Context& context, Gemm& gemm, ConstMatrix dy, ConstMatrix w, Matrix dx,
                           bool accumulate, SequenceShape shape) {
  // Codes of w come transposed.
  multiply_rows(context, gemm, dy, {w.data, w.dtype, w.stride, has_8_bits(w.dtype)}, factor_of(dy, w), {}, dx,
                accumulate, shape);
}

void linear_backward_weight(const Context& context, Gemm& gemm, ConstMatrix dy, ConstMatrix x,
                            SequenceShape shape, const GradientView& dw, const GradientView& dbias) {
  weight_gradient(context, gemm, dy, x, shape, dw);
  if (dbias) column_sums(context, dy, shape, dbias);
}

void column_sums(const Context& context, ConstMatrix dy, SequenceShape shape, const GradientView& dbias) {
  fold_columns(context, dy.cols, shape, dbias, [&](Index row, Index begin, Index count, float* sum) {
    add_row(sum, advance(dy.data, dy.dtype, row * dy.stride + begin), dy.dtype, count);
  });
}

}  // namespace cartan::device::cpu
