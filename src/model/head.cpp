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

/// The plan of one chunk, given the depth before it.
FoldPlan plan_of(const Chunk& chunk, const FoldPlan& micro, int depth, const HeadChunks& chunks) {
  if (chunks.parts == 1) return sub_plan(micro, chunk.first_sequence, chunk.sequences, depth);
  // The parts of a sequence are summed one after another; the last one then takes part in the tree.
  const int merges = micro.merges[static_cast<std::size_t>(chunk.first_sequence)];
  const bool last = chunk.part + 1 == chunks.parts;
  FoldPlan plan;
  plan.depth_before = depth;
  plan.merges = {(chunk.part > 0 ? 1 : 0) + (last ? merges : 0)};
  plan.depth_after = depth + 1 - plan.merges[0];
  plan.max_depth = std::max(plan.depth_before, plan.depth_after);
  return plan;
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

Head::Head(const ModelConfig& config, device::SequenceShape shape, const TensorGroup& tensor)
    : tensor_(tensor),
      vocab_(part_of(config, tensor.slice()).vocab),
      first_(first_vocabulary_row(config, tensor.slice())),
      eps_(static_cast<float>(config.norm_eps)),
      chunks_(head_chunks(shape, vocab_)) {}

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

void Head::cross_entropy(ConstMatrix z, std::span<const std::int32_t> targets, Vector row_loss, Matrix dz,
                         const float* scale, const Workplace& work) const {
  device::Ops& ops = work.ops();
  device::Stream& stream = work.stream();
  if (tensor_.is_alone()) {
    ops.cross_entropy(z, targets, row_loss, dz, scale, stream);
    return;
  }
  // Each rank's maximum, sum and target logit of every row; then those of all.
  const int ranks = tensor_.slice().count;
  const device::ArenaMatrix stacked = work.arena.matrix(DType::f32, 3 * ranks, z.rows);
  const auto part = [&](int rank, Index which) {
    return Vector{stacked.row_block(3 * rank + which, 1).data, DType::f32, z.rows};
  };
  const int own = tensor_.slice().index;
  ops.cross_entropy_stats(z, targets, first_, part(own, 0), part(own, 1), part(own, 2), stream);
  std::vector<comm::ByteView> parts;
  parts.reserve(static_cast<std::size_t>(ranks));
  const std::size_t bytes = 3 * narrow<std::size_t>(z.rows) * sizeof(float);
  for (int r = 0; r < ranks; ++r) parts.emplace_back(static_cast<std::byte*>(part(r, 0).data), bytes);
  tensor_.communicator()->all_gather_parts(std::move(parts), stream);
  const device::ArenaMatrix all = work.arena.matrix(DType::f32, 3, z.rows);
  const auto whole = [&](Index which) { return Vector{all.row_block(which, 1).data, DType::f32, z.rows}; };
  ops.cross_entropy_combine(stacked, ranks, whole(0), whole(1), whole(2), stream);
  ops.cross_entropy_finish(z, targets, first_, whole(0), whole(1), whole(2), row_loss, dz, scale, stream);
}

void Head::loss(const BatchView& batch, ConstMatrix x, ConstVector norm_weight, ConstMatrix matrix,
                Vector row_loss, const Workplace& work) const {
  const device::ArenaMatrix own = work.matrix(x.rows, x.cols);
  work.ops().rmsnorm_forward(x, norm_weight, eps_, own, {}, work.stream());
  const GatheredRows norm = tensor_.gather(own, batch.shape, work);
  for_each_chunk(batch.shape, [&](const Chunk& chunk) {
    const Index rows = chunk.shape.tokens();
    const device::ArenaMatrix z = work.arena.matrix(DType::f32, rows, vocab_);
    work.ops().linear_forward(norm.view.row_block(chunk.first_row, rows), matrix, {}, z, false, chunk.shape,
                              work.stream());
    cross_entropy(
        z, batch.targets.subspan(static_cast<std::size_t>(chunk.first_row), static_cast<std::size_t>(rows)),
        row_loss.slice(chunk.first_row, rows), {}, nullptr, work);
  });
}

device::ArenaMatrix Head::loss_and_gradients(const BatchView& batch, ConstMatrix x, ConstVector norm_weight,
                                             ConstMatrix matrix, Vector row_loss, const float* scale,
                                             const GradientView& d_norm_weight, const GradientView& d_matrix,
                                             const Workplace& work) const {
  device::Ops& ops = work.ops();
  device::Stream& stream = work.stream();
  const device::ArenaVector inv_rms = work.arena.vector(DType::f32, x.rows);
  device::ArenaMatrix d_norm = work.matrix(batch.shape.tokens(), x.cols);
  {
    const device::ArenaMatrix own = work.matrix(x.rows, x.cols);
    ops.rmsnorm_forward(x, norm_weight, eps_, own, inv_rms, stream);
    const GatheredRows norm = tensor_.gather(own, batch.shape, work);
    int depth = d_matrix ? d_matrix.plan->depth_before : 0;
    for_each_chunk(batch.shape, [&](const Chunk& chunk) {
      const Index rows = chunk.shape.tokens();
      const device::ArenaMatrix z = work.arena.matrix(DType::f32, rows, vocab_);
      // The gradient lies in the logits' memory; a narrower dtype leaves the rows' starts where they are.
      const Matrix dz{z.data, x.dtype, rows, vocab_,
                      z.stride * narrow<Index>(size_of(z.dtype)) / narrow<Index>(size_of(x.dtype))};
      const ConstMatrix norm_rows = norm.view.row_block(chunk.first_row, rows);
      ops.linear_forward(norm_rows, matrix, {}, z, false, chunk.shape, stream);
      cross_entropy(
          z, batch.targets.subspan(static_cast<std::size_t>(chunk.first_row), static_cast<std::size_t>(rows)),
          row_loss.slice(chunk.first_row, rows), dz, scale, work);
      ops.linear_backward_input(dz, matrix, d_norm.row_block(chunk.first_row, rows), false, chunk.shape,
                                stream);
      if (!d_matrix) return;
      const FoldPlan plan = plan_of(chunk, *d_matrix.plan, depth, chunks_);
      ops.linear_backward_weight(dz, norm_rows, chunk.shape, {d_matrix.slots, d_matrix.offset, &plan}, {},
                                 stream);
      depth = plan.depth_after;
    });
  }
  if (!tensor_.is_alone()) {
    device::ArenaMatrix own = work.matrix(x.rows, x.cols);
    tensor_.sum_to_owners(d_norm, {}, own, batch.shape, work);
    d_norm = std::move(own);
  }
  device::ArenaMatrix dx = work.matrix(x.rows, x.cols);
  ops.rmsnorm_backward(x, norm_weight, inv_rms, d_norm, dx, false, tensor_.own_rows(batch.shape),
                       d_norm_weight, stream);
  return dx;
}

}  // namespace cartan::model
