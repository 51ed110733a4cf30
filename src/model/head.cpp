// Final norm, projection and loss, chunk by chunk.
#include "cartan/model/head.hpp"

#include <algorithm>

#include "cartan/core/narrow.hpp"

namespace cartan::model {
namespace {

using device::ConstMatrix;
using device::ConstVector;
using device::GradientView;
using device::Matrix;
using device::Vector;

// Logits of one chunk stay below this.
constexpr Index kChunkBytes = Index{32} << 20;

struct Chunk {
  Index first_row = 0;
  device::SequenceShape shape;
  Index first_sequence = 0, sequences = 0;
  Index part = 0;
};

// The plan for `count` leaves from `first` on, given the depth before them.
FoldPlan sub_plan(const FoldPlan& plan, Index first, Index count, int depth_before) {
  FoldPlan sub;
  sub.depth_before = sub.max_depth = depth_before;
  sub.depth_after = depth_before;
  for (Index leaf = first; leaf < first + count; ++leaf) {
    const int merges = plan.merges[static_cast<std::size_t>(leaf)];
    sub.merges.push_back(merges);
    sub.depth_after += 1 - merges;
    sub.max_depth = std::max(sub.max_depth, sub.depth_after);
  }
  return sub;
}

}  // namespace

HeadChunks head_chunks(device::SequenceShape shape, Index vocab) {
  const Index row_bytes = vocab * 4;
  HeadChunks chunks;
  chunks.parts = ceil_div(shape.length * row_bytes, kChunkBytes);
  if (chunks.parts == 1) {
    chunks.sequences = std::clamp<Index>(kChunkBytes / (shape.length * row_bytes), 1, shape.sequences);
    chunks.rows = chunks.sequences * shape.length;
  } else {
    chunks.rows = ceil_div(shape.length, chunks.parts);
    chunks.parts = ceil_div(shape.length, chunks.rows);
  }
  return chunks;
}

int head_slots_needed(const std::vector<FoldPlan>& plans, const HeadChunks& chunks) {
  int slots = 0;
  for (const FoldPlan& plan : plans) {
    int depth = plan.depth_before;
    const auto leaves = narrow<Index>(plan.merges.size());
    for (Index leaf = 0; leaf < leaves; ++leaf) {
      if (chunks.parts > 1) slots = std::max(slots, depth + 1);
      depth += 1 - plan.merges[static_cast<std::size_t>(leaf)];
      if ((leaf + 1) % chunks.sequences == 0 || leaf + 1 == leaves) slots = std::max(slots, depth);
    }
  }
  return slots;
}

Head::Head(const ModelConfig& config, device::SequenceShape shape)
    : vocab_(config.vocab),
      eps_(static_cast<float>(config.norm_eps)),
      chunks_(head_chunks(shape, config.vocab)) {}

template <class Visit>
void Head::for_each_chunk(device::SequenceShape shape, const Visit& visit) const {
  for (Index s = 0; s < shape.sequences; s += chunks_.sequences) {
    if (chunks_.parts == 1) {
      const Index count = std::min(chunks_.sequences, shape.sequences - s);
      visit(Chunk{s * shape.length, {count, shape.length}, s, count, 0});
      continue;
    }
    for (Index part = 0; part < chunks_.parts; ++part) {
      const Index begin = part * chunks_.rows, rows = std::min(chunks_.rows, shape.length - begin);
      visit(Chunk{s * shape.length + begin, {1, rows}, s, 1, part});
    }
  }
}

void Head::loss(const BatchView& batch, ConstMatrix x, ConstVector norm_weight, ConstMatrix matrix,
                Matrix norm, Vector logits, Vector row_loss, device::Ops& ops, device::Stream& stream) const {
  ops.rmsnorm_forward(x, norm_weight, eps_, norm, {}, stream);
  for_each_chunk(batch.shape, [&](const Chunk& chunk) {
    const Index rows = chunk.shape.tokens();
    const Matrix z = device::as_matrix(logits.data, DType::f32, rows, vocab_);
    ops.linear_forward(norm.row_block(chunk.first_row, rows), matrix, {}, z, false, chunk.shape, stream);
    ops.cross_entropy(
        z, batch.targets.subspan(static_cast<std::size_t>(chunk.first_row), static_cast<std::size_t>(rows)),
        row_loss.slice(chunk.first_row, rows), {}, stream);
  });
}

void Head::loss_and_gradients(const BatchView& batch, ConstMatrix x, ConstVector norm_weight,
                              ConstMatrix matrix, Matrix norm, Matrix d_norm, Vector inv_rms, Vector logits,
                              Vector row_loss, Matrix dx, const GradientView& d_norm_weight,
                              const GradientView& d_matrix, device::Ops& ops, device::Stream& stream) const {
  ops.rmsnorm_forward(x, norm_weight, eps_, norm, inv_rms, stream);
  int depth = d_matrix.plan->depth_before;
  for_each_chunk(batch.shape, [&](const Chunk& chunk) {
    const Index rows = chunk.shape.tokens();
    const Matrix z = device::as_matrix(logits.data, DType::f32, rows, vocab_);
    // The gradient lies in the logits' memory; a narrower dtype leaves the rows' starts where they are.
    const Matrix dz{z.data, x.dtype, rows, vocab_,
                    z.stride * narrow<Index>(size_of(z.dtype)) / narrow<Index>(size_of(x.dtype))};
    const ConstMatrix norm_rows = norm.row_block(chunk.first_row, rows);
    ops.linear_forward(norm_rows, matrix, {}, z, false, chunk.shape, stream);
    ops.cross_entropy(
        z, batch.targets.subspan(static_cast<std::size_t>(chunk.first_row), static_cast<std::size_t>(rows)),
        row_loss.slice(chunk.first_row, rows), dz, stream);
    ops.linear_backward_input(dz, matrix, d_norm.row_block(chunk.first_row, rows), false, chunk.shape,
                              stream);
    FoldPlan plan;
    if (chunks_.parts == 1) {
      plan = sub_plan(*d_matrix.plan, chunk.first_sequence, chunk.sequences, depth);
    } else {
      // The parts of a sequence are summed one after another; the last one then takes part in the tree.
      const int merges = d_matrix.plan->merges[static_cast<std::size_t>(chunk.first_sequence)];
      const bool last = chunk.part + 1 == chunks_.parts;
      plan.depth_before = depth;
      plan.merges = {(chunk.part > 0 ? 1 : 0) + (last ? merges : 0)};
      plan.depth_after = depth + 1 - plan.merges[0];
      plan.max_depth = std::max(plan.depth_before, plan.depth_after);
    }
    ops.linear_backward_weight(dz, norm_rows, chunk.shape, {d_matrix.slots, d_matrix.offset, &plan}, {},
                               stream);
    depth = plan.depth_after;
  });
  ops.rmsnorm_backward(x, norm_weight, inv_rms, d_norm, dx, false, batch.shape, d_norm_weight, stream);
}

}  // namespace cartan::model
