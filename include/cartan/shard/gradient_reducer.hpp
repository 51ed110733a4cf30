// Buckets: gradients are summed over the data plane in pieces while the backward pass goes on. Units become
// ready from the last to the first, so the ready part of the flat buffer grows downwards; each time a
// bucket's worth is ready, its reduction starts. Sums are element by element in canonical order, so the size
// of the buckets changes no bit.
#pragma once

#include <vector>

#include "cartan/comm/communicator.hpp"
#include "cartan/shard/flat_state.hpp"

namespace cartan::shard {

class GradientReducer {
 public:
  /// `tree` has the sequences of the global batch as leaves. Reductions run on `stream`.
  GradientReducer(FlatState& state, comm::Communicator& plane, const CanonicalTree& tree,
                  Index bucket_elements, device::Stream& stream);

  /// Unit `unit` (index in the layout) has its gradients of the last micro-batch. Call from the last unit to
  /// the first. Collective over the plane.
  void unit_ready(std::size_t unit);
  /// Waits for all reductions; slot 0 then holds the sums. Returns the seconds waited.
  double finish();

 private:
  void reduce(Index begin, Index end);

  FlatState& state_;
  comm::Communicator& plane_;
  const CanonicalTree& tree_;
  Index bucket_elements_;
  device::Stream& stream_;
  Index reduced_from_ = 0;
  std::vector<device::Event> pending_;
};

}  // namespace cartan::shard
