// How loops over rows and columns are shared among the threads. None of these cuts changes a result: rows and
// columns are independent of each other.
#pragma once

#include <algorithm>

#include "cartan/core/narrow.hpp"
#include "device/cpu/context.hpp"
#include "device/cpu/fold.hpp"

namespace cartan::device::cpu {

/// body(begin, end) over blocks of `rows` rows with `cols` elements each.
template <class Body>
void for_row_blocks(const Context& context, Index rows, Index cols, const Body& body) {
  constexpr Index kElements = 32 * 1024;  // a task takes some microseconds
  const Index block = std::max<Index>(1, kElements / std::max<Index>(1, cols));
  context.pool.run(ceil_div(rows, block),
                   [&](Index task, int) { body(task * block, std::min(rows, (task + 1) * block)); });
}

/// body(begin, count) over blocks of a vector.
template <class Body>
void for_blocks(const Context& context, Index size, const Body& body) {
  constexpr Index kBlock = 64 * 1024;
  context.pool.run(ceil_div(size, kBlock),
                   [&](Index task, int) { body(task * kBlock, std::min(kBlock, size - task * kBlock)); });
}

/// Folds column sums: the leaf of a sequence is the sum over its rows, in order, of what add_row(row, begin,
/// count, sum) adds to sum[0 ... count) for the columns from `begin`.
template <class AddRow>
void fold_columns(const Context& context, Index cols, SequenceShape shape, const GradientView& view,
                  const AddRow& add_one_row) {
  constexpr Index kLine = 16, kMost = 512;  // floats in a cache line; columns whose sums stay in the L1 cache
  const Index fair = ceil_div(ceil_div(cols, 2 * context.pool.size()), kLine) * kLine;
  const Index width = std::clamp(fair, kLine, kMost);
  CARTAN_ASSERT(static_cast<std::size_t>(fold_buffers(*view.plan) * width) * sizeof(float) <= kScratchBytes);
  context.pool.run(ceil_div(cols, width), [&](Index task, int thread) {
    const Index begin = task * width, count = std::min(width, cols - begin);
    TileFold fold(view, {begin, 1, count, count}, context.scratch<float>(thread));
    for (Index s = 0; s < shape.sequences; ++s) {
      float* const sum = fold.leaf();
      std::fill(sum, sum + count, 0.0f);
      for (Index row = s * shape.length; row < (s + 1) * shape.length; ++row) {
        add_one_row(row, begin, count, sum);
      }
      fold.push_leaf();
    }
    fold.finish();
  });
}

}  // namespace cartan::device::cpu
