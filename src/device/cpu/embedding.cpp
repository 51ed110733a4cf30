// Rows of the token table: read, and summed up again in the backward pass.
#include <algorithm>
#include <cstring>

#include "cartan/core/error.hpp"
#include "device/cpu/fold.hpp"
#include "device/cpu/kernels.hpp"
#include "device/cpu/partition.hpp"
#include "device/cpu/rows.hpp"

namespace cartan::device::cpu {
namespace {

void check_id(std::int32_t id, Index token) {
  if (id < 0) throw InternalError("token {} of the micro-batch has id {}, expected 0 or more", token, id);
}

/// The tokens of each id in a block [begin, end) of the vocabulary, in order: first[id - begin], then
/// next[token], ...; -1 ends a list. O(tokens + ids), no sorting.
struct TokenLists {
  std::int32_t* first;
  std::int32_t* next;
  void build(std::span<const std::int32_t> ids, Index begin, Index end) const {
    std::fill(first, first + (end - begin), -1);
    for (Index t = static_cast<Index>(ids.size()) - 1; t >= 0; --t) {
      const std::int32_t id = ids[static_cast<std::size_t>(t)];
      if (id < begin || id >= end) continue;
      next[t] = first[id - begin];
      first[id - begin] = static_cast<std::int32_t>(t);
    }
  }
};

}  // namespace

void embedding_forward(const Context& context, std::span<const std::int32_t> ids, ConstMatrix table,
                       Index first, Matrix out) {
  for_row_blocks(context, out.rows, out.cols, [&](Index begin, Index end) {
    for (Index t = begin; t < end; ++t) {
      const std::int32_t id = ids[static_cast<std::size_t>(t)];
      check_id(id, t);
      void* const row = advance(out.data, out.dtype, t * out.stride);
      if (id < first || id >= first + table.rows) {
        std::memset(row, 0, static_cast<std::size_t>(out.cols) * size_of(out.dtype));
        continue;
      }
      convert(advance(table.data, table.dtype, (id - first) * table.stride), table.dtype, row, out.dtype,
              out.cols);
    }
  });
}

void embedding_backward(const Context& context, std::span<const std::int32_t> ids, ConstMatrix dout,
                        SequenceShape shape, Index first, Index vocab, const GradientView& dtable) {
  for (Index t = 0; t < shape.tokens(); ++t) check_id(ids[static_cast<std::size_t>(t)], t);
  constexpr Index kMaxBlock = 16 * 1024, kMaxCols = 2048;
  const Index block = std::clamp<Index>(ceil_div(vocab, 4 * context.pool.size()), 1, kMaxBlock);
  const std::size_t lists_bytes =
      static_cast<std::size_t>(kMaxBlock + shape.tokens() + 15) / 16 * 16 * sizeof(std::int32_t);
  const std::size_t tile_bytes =
      static_cast<std::size_t>(fold_buffers(*dtable.plan) * std::min(kMaxCols, dout.cols + 15)) *
      sizeof(float);
  if (lists_bytes + tile_bytes > kScratchBytes) {
    throw ConfigError(
        "a micro-batch of {} tokens does not fit the scratch memory of {} bytes a thread: use a "
        "smaller batch.micro",
        shape.tokens(), kScratchBytes);
  }

  context.pool.run(ceil_div(vocab, block), [&](Index task, int thread) {
    const Index begin = task * block, end = std::min(vocab, begin + block);
    auto* const scratch = context.scratch<std::byte>(thread);
    const TokenLists lists{reinterpret_cast<std::int32_t*>(scratch),
                           reinterpret_cast<std::int32_t*>(scratch) + kMaxBlock};
    lists.build(ids, first + begin, first + end);
    auto* const buffers = reinterpret_cast<float*>(scratch + lists_bytes);
    for (Index row = begin; row < end; ++row) {
      for (Index col = 0; col < dout.cols; col += kMaxCols) {
        const Index cols = std::min(kMaxCols, dout.cols - col);
        TileFold fold(dtable, {row * dout.cols + col, 1, cols, cols}, buffers);
        Index t = lists.first[row - begin];
        for (Index s = 0; s < shape.sequences; ++s) {
          const Index sequence_end = (s + 1) * shape.length;
          if (t < 0 || t >= sequence_end) {
            fold.push_zero();
            continue;
          }
          float* const sum = fold.leaf();
          std::fill(sum, sum + cols, 0.0f);
          for (; t >= 0 && t < sequence_end; t = lists.next[t]) {
            add_row(sum, advance(dout.data, dout.dtype, t * dout.stride + col), dout.dtype, cols);
          }
          fold.push_leaf();
        }
        fold.finish();
      }
    }
  });
}

}  // namespace cartan::device::cpu
