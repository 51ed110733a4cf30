// Collectives of a group that spans nodes, each of which holds equally many consecutive ranks: what a node
// can do alone happens in its shared memory, and only its result goes to the other nodes, between ranks at
// the same place. A node's ranks hold neighbouring leaves, so their partial sums fold to the node's own stack
// of the canonical tree: the bits are those of any other way, and what crosses the network falls by the ranks
// of a node, where its leaves are as few nodes of the tree as a rank's.
#pragma once

#include <map>
#include <vector>

#include "comm/mpi/message_collectives.hpp"
#include "comm/mpi/shared_collectives.hpp"

namespace cartan::comm {

class NodeCollectives : public Collectives {
 public:
  /// `inside` works within this node, `across` describes the ranks at this one's place of each node, `flat`
  /// does what does not divide so: all_to_all, and reductions in which the parts of a leaf lie on several
  /// nodes. All outlive it. window_bytes bounds memory as in MessageCollectives.
  NodeCollectives(SharedCollectives& inside, const MessageContext& across, MessageCollectives& flat,
                  std::size_t window_bytes);

  void all_gather_parts(std::span<const ByteView> parts) override;
  void all_to_all(ConstByteView in, ByteView out) override { flat_.all_to_all(in, out); }
  void broadcast(ByteView data, int root) override;
  void reduce(const ReductionPlan& plan, std::span<float* const> slots, Index count,
              std::span<float* const> stack, Reach reach) override;

 private:
  /// The two halves of a reduction: ranks of this node to the node's stack, and the nodes' stacks to the sum.
  struct Levels {
    ReductionPlan inside, across;
  };
  struct Pieces;

  const Levels& levels_of(const ReductionShape& shape);
  void fold_inside(const Levels& levels, const Pieces& pieces, std::span<float* const> slots, Index round);
  void exchange(Requests& requests, const Levels& levels, const Pieces& pieces, Index round);
  void fold_across(const Levels& levels, const Pieces& pieces, std::span<float* const> stack, Index round);

  SharedCollectives& inside_;
  const MessageContext& across_context_;
  MessageCollectives& flat_;
  MessageCollectives across_;
  int place_ = 0, ranks_here_ = 1;  // within the node
  int node_ = 0, nodes_ = 1;
  std::size_t window_bytes_;
  std::vector<float> window_;
  std::map<ReductionShape::Key, Levels> levels_;
};

}  // namespace cartan::comm
