// Updates of states that lie in memory which operations reach slowly: pieces travel through windows in the
// device's memory, two of each, so that one piece comes in while the one before is computed and the one
// before that goes out.
#pragma once

#include <array>
#include <memory>

#include "cartan/device/device.hpp"
#include "cartan/shard/flat_state.hpp"

namespace cartan::optim {

/// What one AdamW update works on, as Ops::adamw has it.
struct UpdateViews {
  device::Vector master;
  device::ConstVector gradient;
  device::Vector exp_avg, exp_avg_sq, compute;
};

class OffloadWindows {
 public:
  explicit OffloadWindows(shard::FlatState& state);

  /// What comes in from now on is what the updates so far left. Within a step no element is updated twice.
  void begin_step();
  /// Enqueues the update; its results are in place at the event.
  device::Event update(const UpdateViews& views, const device::AdamWStep& step,
                       const device::UpdateDecision* decision);
  /// Blocks until what was enqueued is in place.
  void settle();

  /// Elements of a window.
  static constexpr Index kElements = Index{2} << 20;

 private:
  struct Window {
    device::Buffer memory;
    device::Event free;  ///< its content of before has gone out
  };
  /// The piece's views, those of offloaded memory replaced by places in the window.
  UpdateViews place(const UpdateViews& piece, const Window& window) const;
  void update_piece(const UpdateViews& piece, const device::AdamWStep& step,
                    const device::UpdateDecision* decision);

  device::Device& device_;
  bool has_states_, has_parameters_;  ///< what is offloaded
  bool has_master_;                   ///< the master belongs to the states: it is not what computing reads
  std::unique_ptr<device::Stream> in_, out_;
  std::array<Window, 2> windows_;
  std::size_t next_ = 0;
};

}  // namespace cartan::optim
