// The numbers that a stage trains: fp32 master parameters, moments, gradient slots, and the copy in the dtype
// of computing, each one flat buffer in the layout of FlatLayout.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cartan/comm/communicator.hpp"
#include "cartan/device/device.hpp"
#include "cartan/model/block.hpp"
#include "cartan/shard/flat_layout.hpp"

namespace cartan::shard {

struct FlatStateOptions {
  DType compute = DType::f32;
  int gradient_slots = 0;  ///< 0: no gradients and no moments (evaluation, generation)
};

class FlatState {
 public:
  /// Gradients lie in exchange memory of `plane`, the ranks that reduce them. Collective over it.
  FlatState(const FlatLayout& layout, const FlatStateOptions& options, device::Device& device,
            comm::Communicator& plane);

  const FlatLayout& layout() const { return layout_; }
  /// Sets every parameter to its initial value and the moments to zero.
  void initialise(const model::ModelConfig& config, std::uint64_t seed);
  /// Makes the copy for computing from the master parameters. AdamW keeps it up to date itself.
  void refresh_compute();

  device::Vector master(Index begin, Index count) const;
  device::Vector exp_avg(Index begin, Index count) const;
  device::Vector exp_avg_sq(Index begin, Index count) const;
  /// Absent where the master parameters are computed with.
  device::Vector compute(Index begin, Index count) const;
  /// Elements of slot 0: after reduction, the sum.
  device::Vector gradient(Index begin, Index count) const;
  const std::vector<float*>& slots() const { return slots_; }

  /// What the stage's units see; `plan` may be null where no backward pass follows. The views refer to *this.
  std::vector<model::UnitView> unit_views(const FoldPlan* plan) const;
  /// Adds the head's part of a tied matrix's gradient to the embedding's. After reduction.
  void join_tied_gradient();

  device::Device& device() const { return device_; }

 private:
  const FlatLayout& layout_;
  FlatStateOptions options_;
  device::Device& device_;
  device::Buffer master_, moments_, compute_;
  std::vector<device::Buffer> gradients_;
  std::vector<float*> slots_;
};

}  // namespace cartan::shard
