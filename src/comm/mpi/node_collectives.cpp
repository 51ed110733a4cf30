// The data plane in two levels. Reductions go piece by piece: while the stacks of one piece travel, the node
// folds the next one.
#include "comm/mpi/node_collectives.hpp"

#include <algorithm>

#include "cartan/core/narrow.hpp"
#include "comm/mpi/tags.hpp"

namespace cartan::comm {
namespace {

Index length_of(LeafRange range) { return range.end - range.begin; }

ConstByteView bytes_of(const float* data, Index count) {
  return std::as_bytes(std::span(data, static_cast<std::size_t>(count)));
}

ByteView writable_bytes_of(float* data, Index count) {
  return std::as_writable_bytes(std::span(data, static_cast<std::size_t>(count)));
}

}  // namespace

/// How a reduction is cut: chunks of owners into pieces, one a round, and where the values of a piece lie.
/// Two rounds share the window.
struct NodeCollectives::Pieces {
  const ReductionPlan& plan;
  Index count = 0;
  int shard = 0, ranks_here = 1;
  Index piece = 0, rounds = 0;       // in elements
  Index outgoing = 0, incoming = 0;  // stacks that go to, and values that come from, all nodes
  float* window = nullptr;
  Index room = 0;  // elements of the longest piece

  LeafRange chunk(int node, int place) const {
    return chunk_range(count, node * ranks_here + place, plan.size(), shard);
  }
  LeafRange of(int node, int place, Index round) const {
    const LeafRange whole = chunk(node, place);
    const Index begin = std::min(whole.begin + round * piece, whole.end);
    return {begin, std::min(begin + piece, whole.end)};
  }
  float* half(Index round) const { return window + (round % 2) * (outgoing + incoming) * room; }
  /// This node's stack for the owner on `node`: its entries one after the other, each as long as the piece.
  float* stack_for(int node, int depth, Index round) const { return half(round) + node * depth * room; }
  float* received(std::size_t value, Index length, Index round) const {
    return half(round) + outgoing * room + static_cast<Index>(value) * length;
  }
};

NodeCollectives::NodeCollectives(SharedCollectives& inside, const MessageContext& across,
                                 MessageCollectives& flat, std::size_t window_bytes)
    : inside_(inside),
      across_context_(across),
      flat_(flat),
      across_(across, window_bytes),
      place_(inside.rank()),
      ranks_here_(inside.size()),
      window_bytes_(window_bytes) {
  check(MPI_Comm_rank(across.comm, &node_), across.name, "set-up");
  check(MPI_Comm_size(across.comm, &nodes_), across.name, "set-up");
}

void NodeCollectives::all_gather_parts(std::span<const ByteView> parts) {
  std::vector<ByteView> of_my_place;
  of_my_place.reserve(narrow<std::size_t>(nodes_));
  for (Index node = 0; node < nodes_; ++node)
    of_my_place.push_back(parts[narrow<std::size_t>(node * ranks_here_ + place_)]);
  across_.all_gather_parts(of_my_place);
  inside_.all_gather_parts(parts);
}

void NodeCollectives::broadcast(ByteView data, int root) {
  if (place_ == root % ranks_here_) across_.broadcast(data, root / ranks_here_);
  inside_.broadcast(data, root % ranks_here_);
}

void NodeCollectives::reduce(const ReductionPlan& plan, std::span<float* const> slots, Index count,
                             std::span<float* const> stack, Reach reach) {
  if (ranks_here_ % plan.shape.parts != 0) {
    flat_.reduce(plan, slots, count, stack, reach);
    return;
  }
  // Where everybody receives the whole sum it does not matter who owns which chunk: those of one place then
  // follow each other, so that what a rank has to gather, and to pass on, is in one piece.
  const bool to_all = reach == Reach::all;
  const Levels& levels = levels_of(plan.shape);
  Pieces pieces{plan, count, to_all ? ranks_here_ : plan.shape.shard, ranks_here_};
  pieces.outgoing = Index{nodes_} * levels.across.most_slots();
  pieces.incoming = std::ssize(levels.across.values);
  const Index fitting = static_cast<Index>(window_bytes_ / sizeof(float)) /
                        std::max<Index>(1, 2 * (pieces.outgoing + pieces.incoming));
  pieces.piece = std::max(fitting / device::kSumBlock, Index{1}) * device::kSumBlock;
  Index most = 0;
  for (int rank = 0; rank < plan.size(); ++rank)
    most = std::max(most, length_of(pieces.chunk(rank / ranks_here_, rank % ranks_here_)));
  pieces.rounds = ceil_div(most, pieces.piece);
  pieces.room = std::min(pieces.piece, most);
  window_.resize(std::max(window_.size(),
                          static_cast<std::size_t>(2 * (pieces.outgoing + pieces.incoming) * pieces.room)));
  pieces.window = window_.data();
  std::vector<float*> sums(stack.begin(), stack.end());
  if (to_all) sums = {slots[0] + pieces.chunk(node_, place_).begin};

  inside_.open_reduction(levels.inside, slots, count);
  Requests even(across_context_, "reduce_scatter"), odd(across_context_, "reduce_scatter");
  Requests* const in_flight[] = {&even, &odd};
  for (Index round = 0; round <= pieces.rounds; ++round) {
    if (round < pieces.rounds) {
      fold_inside(levels, pieces, slots, round);
      exchange(*in_flight[round % 2], levels, pieces, round);
    }
    if (round > 0) {
      in_flight[(round - 1) % 2]->wait();
      fold_across(levels, pieces, sums, round - 1);
    }
  }
  inside_.close_reduction();
  if (!to_all) return;

  std::vector<ByteView> across, inside;
  const auto part = [&](LeafRange range) {
    return writable_bytes_of(slots[0] + range.begin, length_of(range));
  };
  for (int node = 0; node < nodes_; ++node) across.push_back(part(pieces.chunk(node, place_)));
  for (int place = 0; place < ranks_here_; ++place)
    inside.push_back(part(chunk_range(count, place, ranks_here_)));
  across_.all_gather_parts(across);
  inside_.all_gather_parts(inside);
}

void NodeCollectives::fold_inside(const Levels& levels, const Pieces& pieces, std::span<float* const> slots,
                                  Index round) {
  for (int node = 0; node < nodes_; ++node) {
    std::vector<LeafRange> ranges;
    ranges.reserve(narrow<std::size_t>(ranks_here_));
    for (int place = 0; place < ranks_here_; ++place) ranges.push_back(pieces.of(node, place, round));
    const Index length = length_of(ranges[static_cast<std::size_t>(place_)]);
    const int depth = levels.inside.depth_after;
    std::vector<float*> stack;
    stack.reserve(narrow<std::size_t>(depth));
    for (int entry = 0; entry < depth; ++entry)
      stack.push_back(pieces.stack_for(node, depth, round) + entry * length);
    inside_.fold(levels.inside, slots, ranges, stack);
  }
}

void NodeCollectives::exchange(Requests& requests, const Levels& levels, const Pieces& pieces, Index round) {
  const Index mine = length_of(pieces.of(node_, place_, round));
  for (std::size_t v = 0; v < levels.across.values.size(); ++v) {
    const int from = levels.across.values[v].rank;
    if (from != node_)
      requests.receive(writable_bytes_of(pieces.received(v, mine, round), mine), from, kTagReduce);
  }
  const int depth = levels.inside.depth_after;
  for (int step = 1; step < nodes_; ++step) {
    const int to = (node_ + step) % nodes_;  // each node begins elsewhere, so that none is flooded
    const Index length = length_of(pieces.of(to, place_, round));
    for (int entry = 0; entry < depth; ++entry)
      requests.send(bytes_of(pieces.stack_for(to, depth, round) + entry * length, length), to, kTagReduce);
  }
}

void NodeCollectives::fold_across(const Levels& levels, const Pieces& pieces, std::span<float* const> stack,
                                  Index round) {
  const LeafRange part = pieces.of(node_, place_, round);
  const Index length = length_of(part), first = part.begin - pieces.chunk(node_, place_).begin;
  std::vector<const float*> operands;
  for (std::size_t v = 0; v < levels.across.values.size(); ++v) {
    const PlannedValue& value = levels.across.values[v];
    operands.push_back(value.rank == node_
                           ? pieces.stack_for(node_, levels.inside.depth_after, round) + value.slot * length
                           : pieces.received(v, length, round));
  }
  std::vector<float*> entries;
  for (float* entry : stack) entries.push_back(entry + first);
  Folder(levels.across).fold(operands, entries, {}, length);
}

const NodeCollectives::Levels& NodeCollectives::levels_of(const ReductionShape& shape) {
  const auto found = levels_.find(shape.key());
  if (found != levels_.end()) return found->second;
  // Among the nodes the leaves are shared out as among as many ranks: leaf_range(leaves, node, nodes) is what
  // the node's ranks hold together.
  ReductionShape across = shape;
  across.parts = 1;
  across.size = nodes_;
  const int first = node_ * ranks_here_;
  return levels_
      .emplace(shape.key(), Levels{plan_alone(shape, first, first + ranks_here_), plan_reduction(across)})
      .first->second;
}

}  // namespace cartan::comm
