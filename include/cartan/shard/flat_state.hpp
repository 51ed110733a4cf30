// The numbers that a rank trains: parameters in the dtype of computing, fp32 master parameters, moments,
// gradient slots, each one flat buffer in the layout of FlatLayout; whole, or the rank's own parts, as the
// layout's ZeRO stage says.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cartan/comm/communicator.hpp"
#include "cartan/device/device.hpp"
#include "cartan/model/unit_source.hpp"
#include "cartan/shard/flat_layout.hpp"

namespace cartan::shard {

struct FlatStateOptions {
  DType compute = DType::f32;
  int gradient_slots = 0;  ///< of whole gradients; 0: no gradients and no moments (evaluation, generation)
  int owned_slots = 1;     ///< transient gradients: depth of the owner's stack of sums
  int windows = 2;         ///< where units are gathered or cast one by one: room for so many at a time
  bool offload_states = false;      ///< master parameters and moments
  bool offload_parameters = false;  ///< and what only this rank reads of the parameters for computing
};

/// Where a rank's shard of the states has its peers.
struct ShardGroups {
  comm::Communicator* plane = nullptr;  ///< the ranks that reduce gradients
  comm::Communicator* shard = nullptr;  ///< the `width` neighbours that share one set of states
  device::Stream* stream = nullptr;     ///< on which they communicate
};

class FlatUnits;

class FlatState {
 public:
  /// Collective over the plane.
  FlatState(const FlatLayout& layout, const FlatStateOptions& options, device::Device& device,
            const ShardGroups& groups);
  /// All of the layout on one rank.
  FlatState(const FlatLayout& layout, const FlatStateOptions& options, device::Device& device,
            comm::Communicator& alone);

  const FlatLayout& layout() const { return layout_; }
  DType compute_dtype() const { return options_.compute; }
  device::Device& device() const { return device_; }
  bool offloads_states() const { return options_.offload_states; }
  bool offloads_parameters() const { return options_.offload_parameters && shards_.data() != nullptr; }

  /// Sets all parameters, masters and moments to zero.
  void clear();
  /// Sets every parameter to its initial value and the moments to zero. Collective.
  void initialise(const model::ModelConfig& config, std::uint64_t seed);
  /// Makes the parameters for computing from the master parameters, which were written on the compute stream,
  /// as the moments were; from now on any stream may use them. Blocks. Collective.
  void refresh_compute();

  // Elements [begin, begin + count) of a unit, which this rank owns.
  device::Vector master(std::size_t unit, Index begin, Index count) const;
  device::Vector exp_avg(std::size_t unit, Index begin, Index count) const;
  device::Vector exp_avg_sq(std::size_t unit, Index begin, Index count) const;
  /// What an update writes for computing; absent where that is the master itself, or is made on demand.
  device::Vector compute(std::size_t unit, Index begin, Index count) const;
  /// Elements of a unit's frozen parameters that this rank keeps, in the dtype of computing.
  device::Vector frozen(std::size_t unit, Index begin, Index count) const;
  /// The parameters for computing, owned or not; where this rank keeps all of them (stages 0 to 2, and not
  /// fused).
  device::Vector whole(std::size_t unit, Index begin, Index count) const;
  /// The reduced gradient, after the reduction.
  device::Vector gradient(const GradientPart& part, Index begin, Index count) const;

  /// Buffers of whole gradients.
  const std::vector<float*>& slots() const { return slots_; }
  /// Stack of sums of an owned part.
  std::vector<float*> owned_stack(const GradientPart& part) const;
  /// Nobody writes into the place of a part before `event`: it is being reduced.
  void set_busy(const GradientPart& part, device::Event event);
  void wait_until_free(const GradientPart& part);

  /// Adds the head's part of a tied matrix's gradient to the embedding's, where both are here. After
  /// reduction.
  void join_tied_gradient();

  /// The owned part of a unit has new values: others get them where all keep all. Collective.
  void publish(std::size_t unit);
  /// Offloaded states and parameters have the values of an update once `event` happened.
  void set_written(device::Event event) { written_ = std::move(event); }
  /// All units have new values.
  void forget_gathered();

  /// Units [first, first + ...) for a stage, with the fold plan of a micro-batch; see FlatUnits.
  FlatUnits units(std::size_t first = 0, const FoldPlan* plan = nullptr,
                  const FoldPlan* embedding_plan = nullptr);

 private:
  friend class FlatUnits;

  /// Memory for one unit in the dtype of computing, for as long as it is held.
  struct Window {
    device::Buffer memory;
    std::optional<std::size_t> unit;  ///< whose parameters are there, or on their way
    device::Event ready;
    int holders = 0;
    std::uint64_t last_use = 0;
  };

  bool is_on_demand() const { return !windows_.empty(); }
  /// What each rank of the shard group owns of elements [begin, end) of a unit at `base`.
  std::vector<comm::ByteView> parts_of(void* base, LeafRange elements) const;
  /// Copies a unit's own part into a window; done at the event.
  device::Event bring(const device::Vector& from, const device::Vector& to);
  Window* window_of(std::size_t unit);
  /// The window that can be had for a unit, filled; none if all are in use.
  Window* fill_window(std::size_t unit);
  device::Vector owned(const device::Buffer& buffer, DType dtype, std::size_t unit, Index begin,
                       Index count) const;

  const FlatLayout& layout_;
  FlatStateOptions options_;
  device::Device& device_;
  ShardGroups groups_;
  device::Buffer whole_;    ///< all parameters in the dtype of computing; absent where windows hold them
  device::Buffer master_;   ///< owned, fp32; absent where whole_ has them
  device::Buffer shards_;   ///< owned, in the dtype of computing, where only windows hold more
  device::Buffer frozen_;   ///< likewise the own part of what is not trained
  device::Buffer moments_;  ///< owned: exp_avg, then exp_avg_sq
  std::vector<device::Buffer> gradients_, owned_gradients_;
  std::vector<float*> slots_;
  std::vector<std::pair<Index, device::Event>> busy_;  ///< by begin of the place
  std::vector<Window> windows_;                        ///< [0] for the embedding
  std::uint64_t uses_ = 0;
  std::vector<device::Event> published_;
  device::Event written_;
  std::unique_ptr<device::Stream> offload_stream_;  ///< brings offloaded parameters into windows
};

/// Elements [begin, begin + count) of a unit, which a rank owns.
using OwnedView = std::function<device::Vector(std::size_t unit, Index begin, Index count)>;

/// The first parameter of which what this rank owns, as `view` shows it, has an element that is not finite.
/// Blocks; for diagnosis.
std::optional<std::string> first_nonfinite(const FlatState& state, const OwnedView& view);

/// The units of a stage. Gradients of the first unit follow `embedding_plan` where there is one; plans may be
/// null where no backward pass follows. Where a rank does not keep all parameters for computing, acquire and
/// prefetch gather a unit, or cast it from its master.
class FlatUnits : public model::UnitSource {
 public:
  FlatUnits(FlatState& state, std::size_t first, const FoldPlan* plan, const FoldPlan* embedding_plan)
      : state_(state),
        first_(first),
        plan_(plan),
        embedding_plan_(embedding_plan != nullptr ? embedding_plan : plan) {}
  model::UnitView acquire(std::size_t index) override;
  void prefetch(std::size_t index) override;
  void release(std::size_t index) override;
  device::GradientView gradient(std::size_t index) override;

 private:
  FlatState& state_;
  std::size_t first_;
  const FoldPlan *plan_, *embedding_plan_;
};

}  // namespace cartan::shard
