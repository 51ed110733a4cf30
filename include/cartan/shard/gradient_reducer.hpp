// Gradients are summed over the data plane while the backward pass goes on, element by element in canonical
// order: how and when changes no bit. Where the configuration says so they travel with 16 bits, or
// compressed.
//
// Where every rank keeps whole gradients, units that are complete are reduced in buckets that may span
// several; where ranks own parts, unit by unit; with transient gradients after each micro-batch, onto the
// owner's stack of sums. A hook takes unit by unit once its warm-up is over.
#pragma once

#include <memory>
#include <vector>

#include "cartan/comm/communicator.hpp"
#include "cartan/shard/flat_state.hpp"
#include "cartan/shard/hook_config.hpp"

namespace cartan::shard {

struct ReducerOptions {
  Index global_batch = 1;  ///< leaves of the canonical tree
  int parts = 1;           ///< neighbours in the plane that compute parts of the same sequences
  Index bucket_elements = 1;
  DType wire = DType::f32;    ///< of gradients on the way to their owners
  HookConfig hook{};          ///< ZeRO stages 0 and 1 only
  bool library_sums = false;  ///< in the order of the GPUs' library; then fp32 on the wire
};

class GradientSum;
class GradientHook;

/// A plane of one rank sends nothing: nothing is rounded or compressed there.
class GradientReducer {
 public:
  /// `replicas`: the ranks of the plane that own the same parts; null where there is only one. Reductions run
  /// on `stream`. Collective over the plane.
  GradientReducer(FlatState& state, comm::Communicator& plane, comm::Communicator* replicas,
                  const ReducerOptions& options, device::Stream& stream);
  ~GradientReducer();

  /// The gradients that come next are those of update number `update` (1-based) of the training.
  void begin_step(Index update);
  /// Unit `unit` (index in the layout) has its gradients of a micro-batch whose sequences, over the plane,
  /// are `leaves`; `last`: of the step's last one. Called in the same order on all ranks of the plane.
  /// Collective.
  void unit_ready(std::size_t unit, LeafRange leaves, bool last);
  /// Waits for all reductions; FlatState::gradient then has the sums of what this rank owns. Returns the
  /// seconds waited. Collective.
  double finish();

 private:
  void extend_bucket(const GradientPart& part);
  void flush_bucket(Index at_least);
  void reduce_to_owner(const GradientPart& part, LeafRange leaves, bool last);
  void gather_from_replicas(const GradientPart& part);
  template <class Visit>
  void for_each_part(std::size_t unit, const Visit& visit) const;

  FlatState& state_;
  comm::Communicator* replicas_;
  device::Stream& stream_;
  Index bucket_elements_, warmup_;
  std::unique_ptr<GradientSum> sum_;
  std::unique_ptr<GradientHook> hook_;  ///< null: none
  bool compresses_ = false;             ///< the step under way
  LeafRange bucket_{0, 0};  ///< elements of the whole gradients that are complete but not yet being reduced
  std::vector<device::Event> pending_;
};

}  // namespace cartan::shard
