// How the sum of gradients over the data plane is taken, and what a rank needs to take part in it.
#pragma once

#include <memory>

#include "cartan/comm/communicator.hpp"
#include "cartan/shard/flat_state.hpp"

namespace cartan::shard {

/// A rank's place in the exchange of gradients. Everything runs on `stream`.
struct ExchangePlace {
  FlatState& state;
  comm::Communicator& plane;
  device::Stream& stream;
  CanonicalTree tree;  ///< over the sequences of the global batch
  int parts = 1;       ///< neighbours in the plane that compute parts of the same sequences

  LeafRange all_leaves() const { return {0, tree.leaves()}; }
  /// Fp32 elements of the first gradient slot.
  device::Vector whole(Index begin, Index count) const;
  /// What is enqueued next comes after what was computed so far.
  void wait_for_gradients() const;
  /// Waits likewise, and adds up this rank's stack of sums over `leaves` in the first slot; zeros where it
  /// computed none.
  void fold_own(Index begin, Index count, LeafRange leaves) const;
};

class GradientSum {
 public:
  virtual ~GradientSum() = default;
  /// Elements [begin, begin + count) of the first slot become the sum over all ranks. Collective.
  virtual device::Event all_reduce(Index begin, Index count) = 0;
  /// What this rank alone owns of a part becomes the sum over all ranks: in the first slot; with transient
  /// gradients in the owner's stack, to which `leaves` are pushed. Collective.
  virtual device::Event reduce_scatter(const GradientPart& part, LeafRange leaves) = 0;
};

/// In fp32, in canonical order.
std::unique_ptr<GradientSum> make_canonical_sum(const ExchangePlace& place);
/// In fp32, in the order of the GPUs' library.
std::unique_ptr<GradientSum> make_library_sum(const ExchangePlace& place);
/// Each rank's own sum is rounded to 16 bits and sent to the owner of its chunk, who adds the chunks up in
/// fp32 in the order of ranks. all_reduce gathers fp32 sums. `most_elements`: of one call. Collective.
std::unique_ptr<GradientSum> make_rounded_sum(const ExchangePlace& place, DType wire, Index most_elements);

}  // namespace cartan::shard
