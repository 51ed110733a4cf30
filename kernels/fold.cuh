// Folding the leaves of a micro-batch (one a sequence) into the slots of a parameter's partial sums
// (cartan/core/canonical_tree.hpp), element by element: each thread owns elements and pushes their leaves in
// order.
#pragma once

#include "base.cuh"

namespace cartan::kernels {

/// The values of one element that are not in their slots yet. `room` has kMaxDepth floats for each thread of
/// the block in shared memory, thread i's at room[depth * threads + i].
class FoldStack {
 public:
  __device__ FoldStack(const Fold& fold, Index element, float* room)
      : fold_(fold),
        element_(element),
        room_(room + threadIdx.x),
        depth_(fold.depth_before),
        first_(depth_) {}

  /// The next leaf.
  __device__ void push(float value) {
    for (int merges = fold_.merges[leaf_++]; merges > 0; --merges) value = take_top() + value;
    room_[(depth_ - first_) * static_cast<int>(blockDim.x)] = value;
    ++depth_;
  }

  /// Writes the new values to their slots.
  __device__ void finish() {
    for (int i = first_; i < depth_; ++i)
      fold_.slots[i][element_] = room_[(i - first_) * static_cast<int>(blockDim.x)];
  }

 private:
  __device__ float take_top() {
    --depth_;
    if (depth_ >= first_) return room_[(depth_ - first_) * static_cast<int>(blockDim.x)];
    first_ = depth_;
    return fold_.slots[depth_][element_];
  }

  const Fold& fold_;
  Index element_;
  float* room_;
  int depth_;  ///< of the stack
  int first_;  ///< values below it are in their slots
  int leaf_ = 0;
};

}  // namespace cartan::kernels
