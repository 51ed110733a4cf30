// The numbers that a stage trains: fp32 master parameters, moments, gradient slots, and the copy in the dtype
// of computing, each one flat buffer in the layout of FlatLayout.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "cartan/comm/communicator.hpp"
#include "cartan/device/device.hpp"
#include "cartan/model/stage.hpp"
#include "cartan/shard/flat_layout.hpp"

namespace cartan::shard {

struct FlatStateOptions {
  DType compute = DType::f32;
  int gradient_slots = 0;  ///< 0: no gradients and no moments (evaluation, generation)
};

class FlatUnits;

class FlatState {
 public:
  /// Gradients lie in exchange memory of `plane`, the ranks that reduce them. Collective over it.
  FlatState(const FlatLayout& layout, const FlatStateOptions& options, device::Device& device,
            comm::Communicator& plane);

  const FlatLayout& layout() const { return layout_; }
  DType compute_dtype() const { return options_.compute; }
  /// Sets every parameter to its initial value and the moments to zero.
  void initialise(const model::ModelConfig& config, std::uint64_t seed);
  /// Makes the copy for computing from the master parameters. AdamW keeps it up to date itself.
  void refresh_compute();

  device::Vector master(Index begin, Index count) const;
  device::Vector exp_avg(Index begin, Index count) const;
  device::Vector exp_avg_sq(Index begin, Index count) const;
  /// Absent where no copy of all parameters is kept.
  device::Vector compute(Index begin, Index count) const;
  /// Elements of slot 0: after reduction, the sum.
  device::Vector gradient(Index begin, Index count) const;
  const std::vector<float*>& slots() const { return slots_; }

  /// The units for a stage; see FlatUnits.
  FlatUnits units(const FoldPlan* plan = nullptr, const FoldPlan* embedding_plan = nullptr);
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

  /// Where a unit lies in the dtype of computing for as long as it is held.
  struct Window {
    device::Buffer memory;
    bool held = false;
  };
  Window& window(std::size_t unit) { return windows_[unit == 0 ? 0 : 1]; }
  std::array<Window, 2> windows_;  ///< for the first unit, and for one of the others

  friend class FlatUnits;
};

/// The units of a FlatState, with the fold plan of a micro-batch. Gradients of the first unit follow
/// `embedding_plan` where there is one; plans may be null where no backward pass follows. In a transient
/// layout a unit is cast into the dtype of computing each time it is acquired: no copy of all parameters
/// exists.
class FlatUnits : public model::UnitSource {
 public:
  FlatUnits(FlatState& state, const FoldPlan* plan, const FoldPlan* embedding_plan)
      : state_(state), plan_(plan), embedding_plan_(embedding_plan != nullptr ? embedding_plan : plan) {}
  model::UnitView acquire(std::size_t index) override;
  void release(std::size_t index) override;
  device::GradientView gradient(std::size_t index) override;

 private:
  FlatState& state_;
  const FoldPlan *plan_, *embedding_plan_;
};

}  // namespace cartan::shard
