// Folds the leaves of a micro-batch (one a sequence) into the slots of a parameter's partial sums, tile by
// tile: a tile's leaves, and the values on the stack that are new, live in scratch memory, so each gradient
// element in main memory is read and written about once a micro-batch. The additions are those of the plan in
// the plan's order (core/canonical_tree.hpp); which memory holds a value does not change its bits.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>

#include "cartan/core/error.hpp"
#include "cartan/device/view.hpp"
#include "device/cpu/kernels.hpp"

namespace cartan::device::cpu {

/// Tile buffers that a fold of this plan needs at once: the values of the stack that are new, and a leaf.
inline int fold_buffers(const FoldPlan& plan) {
  int on_stack = 0, most = 0;
  for (const int merges : plan.merges) {
    most = std::max(most, on_stack + 1);
    on_stack = std::max(0, on_stack - merges) + 1;  // merges beyond the new values take old ones, in slots
  }
  return most;
}

/// Where a tile of a parameter lies: rows x cols, `stride` floats from row to row of the slots.
struct FoldTile {
  Index offset = 0;  ///< of its first element from the parameter's start
  Index rows = 1, cols = 0, stride = 0;
  Index size() const { return rows * cols; }
};

class TileFold {
 public:
  /// buffers: fold_buffers(*view.plan) blocks of tile.size() floats, rounded up to 16.
  TileFold(const GradientView& view, const FoldTile& tile, float* buffers)
      : view_(view), tile_(tile), buffers_(buffers), depth_(view.plan->depth_before) {
    CARTAN_ASSERT(view.plan->max_depth < kMaxDepth);
    for (int i = 0; i < depth_; ++i) stack_[i] = {slot(i), tile_.stride, -1, false};
  }

  static Index buffer_floats(const FoldTile& tile) { return (tile.size() + 15) / 16 * 16; }

  /// A free buffer (contiguous) to compute the next leaf in; push comes next.
  float* leaf() {
    leaf_buffer_ = take_buffer();
    return buffers_ + leaf_buffer_ * buffer_floats(tile_);
  }

  /// The leaf computed in leaf() is the next one.
  void push_leaf() {
    push({buffers_ + leaf_buffer_ * buffer_floats(tile_), tile_.cols, leaf_buffer_, false});
  }

  /// The next leaf is zero everywhere. (No sum here can be -0, so leaving out "+ 0" keeps the bits.)
  void push_zero() { push({nullptr, 0, -1, true}); }

  /// Writes the values that are not in their slots yet.
  void finish() {
    CARTAN_ASSERT(leaves_ == static_cast<int>(view_.plan->merges.size()) &&
                  depth_ == view_.plan->depth_after);
    for (int i = 0; i < depth_; ++i) {
      const Value& value = stack_[i];
      float* const out = slot(i);
      if (value.data == out) continue;
      for (Index r = 0; r < tile_.rows; ++r) {
        float* const row = out + r * tile_.stride;
        const auto bytes = static_cast<std::size_t>(tile_.cols) * sizeof(float);
        if (value.zero) {
          std::memset(row, 0, bytes);
        } else {
          std::memcpy(row, value.data + r * value.stride, bytes);
        }
      }
    }
  }

 private:
  // 2 log2 of more sequences than any batch has.
  static constexpr int kMaxDepth = 96;

  // Left uninitialised in the stack: a fold of an embedding row takes no longer than its few values.
  struct Value {
    float* data;
    Index stride;
    int buffer;  ///< -1: in a slot, or zero
    bool zero;
  };

  float* slot(int i) const { return view_.slots[static_cast<std::size_t>(i)] + view_.offset + tile_.offset; }

  int take_buffer() {
    for (int i = 0; i < kMaxDepth; ++i) {
      if (!used_[i]) {
        used_[i] = true;
        return i;
      }
    }
    throw InternalError("a fold needs more than {} buffers", kMaxDepth);
  }

  void release(const Value& value) {
    if (value.buffer >= 0) used_[value.buffer] = false;
  }

  void push(Value value) {
    const auto& merges = view_.plan->merges;
    const int count = merges[static_cast<std::size_t>(leaves_++)];
    const bool last_leaf = leaves_ == static_cast<int>(merges.size());
    for (int i = 0; i < count; ++i) {
      const Value top = stack_[--depth_];
      if (value.zero) {
        value = top;
        continue;
      }
      if (top.zero) continue;
      // A value in a slot is always in the slot of its position, so the sum of two such stays in top's. The
      // result of the micro-batch's last addition goes straight to its slot.
      Value sum = top.buffer < 0 && value.buffer >= 0 ? value : top;
      if (last_leaf && i + 1 == count) sum = {slot(depth_), tile_.stride, -1, false};
      if (tile_.stride == tile_.cols) {
        add_floats(top.data, value.data, sum.data, tile_.size());
      } else {
        for (Index r = 0; r < tile_.rows; ++r) {
          add_floats(top.data + r * top.stride, value.data + r * value.stride, sum.data + r * sum.stride,
                     tile_.cols);
        }
      }
      if (top.buffer >= 0 && top.buffer != sum.buffer) release(top);
      if (value.buffer >= 0 && value.buffer != sum.buffer) release(value);
      value = sum;
    }
    stack_[depth_++] = value;
  }

  GradientView view_;
  FoldTile tile_;
  float* buffers_;
  int depth_;
  int leaves_ = 0;
  int leaf_buffer_ = -1;
  std::array<Value, kMaxDepth> stack_;
  std::array<bool, kMaxDepth> used_{};
};

}  // namespace cartan::device::cpu
