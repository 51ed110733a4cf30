// Runs a rank's list of actions: the stages' forward and backward passes, with what comes from and goes to
// the neighbours.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "cartan/comm/mesh_groups.hpp"
#include "cartan/model/stage.hpp"
#include "cartan/pipeline/schedule.hpp"
#include "cartan/shard/flat_state.hpp"
#include "cartan/train/config.hpp"
#include "cartan/train/engine.hpp"
#include "train/batch_share.hpp"
#include "train/channel.hpp"

namespace cartan::train {

/// What the engine does at certain points of a step. All may be empty.
struct RunnerHooks {
  /// Row losses of a flight are there; its blocks still have their inputs.
  std::function<void(const data::Batch& rows, Index first_leaf, const model::Flight& flight)> losses = {};
  /// Unit `unit` of the layout has its gradients of a micro-batch; `last`: of the step.
  std::function<void(std::size_t unit, Index micro_batch, bool last)> unit_done = {};
  /// In an evaluation, on stages with a head: the flight's logits can be had from its stage.
  std::function<void(model::Stage& stage, const model::Flight& flight, model::UnitSource& units)> head = {};
};

struct RunnerOptions {
  bool overlap = false;   ///< messages travel beside computing
  bool training = true;   ///< false: only evaluate() is called
  Index rope_length = 0;  ///< see model::StageOptions
};

/// Memory for what lives within a step.
struct StepArenas {
  std::unique_ptr<device::Arena> device, host;  ///< host: activations that are offloaded
};

/// Memory for the activations of a rank, where peers of its layers' collectives reach it directly. Collective
/// over the groups of tp and cp.
device::Buffer allocate_arena(std::size_t bytes, device::Device& device, comm::Mesh& mesh);

struct RunnerTimes {
  double data = 0;     ///< waiting for micro-batches
  double compute = 0;  ///< in actions, with what they wait for
  double wait = 0;     ///< of these, waiting for neighbours
};

class StageRunner {
 public:
  /// Stages as the schedule's chunks of this rank's place in the pipeline. `fp8`: see model::StageOptions.
  /// Collective over the mesh.
  StageRunner(const Config& config, const BatchShare& share, const std::vector<model::StageRange>& ranges,
              const pipeline::Schedule& schedule, shard::FlatState& flat, const model::Fp8Scales* fp8,
              device::Device& device, comm::Mesh& mesh, const StepArenas& arenas,
              const RunnerOptions& options);

  /// Forward and backward of all micro-batches; gradients come out multiplied by *loss_scale, in the device's
  /// memory (null: 1). `embedding_plan`: see shard::FlatUnits; `dropout_seed`: see model::DropoutRows.
  RunnerTimes train(const NextBatch& next, const RunnerHooks& hooks, const FoldPlan* embedding_plan,
                    const float* loss_scale, const std::uint64_t* dropout_seed);
  /// Forward and losses only.
  void evaluate(const NextBatch& next, const RunnerHooks& hooks);

 private:
  /// A micro-batch in one stage.
  struct InFlight {
    device::ArenaPiece integers;
    model::Flight flight;
  };
  struct Key {
    int chunk = 0;
    Index micro_batch = 0;
    auto operator<=>(const Key&) const = default;
  };
  /// The rows of this rank.
  struct HostBatch {
    data::MicroBatch whole;
    data::Batch rows;  ///< where sequences are cut
    const data::Batch& own(bool is_cut) const { return is_cut ? rows : whole.batch; }
  };

  device::SequenceShape own_shape(Index micro_batch) const;
  const HostBatch& load(Index micro_batch, const NextBatch& next);
  void unload(Index micro_batch);
  InFlight& start(Key key, const NextBatch& next);
  void post_next(Channel* channel, const std::vector<Key>& expected, std::size_t& posted);
  void run_forward(Key key, bool keeps, const pipeline::Route& route, const NextBatch& next);
  void run_backward(const pipeline::Action& action, const pipeline::Route& route, const RunnerHooks& hooks,
                    const FoldPlan* embedding_plan);

  const BatchShare& share_;
  pipeline::Schedule schedule_;
  std::size_t place_;  ///< in the pipeline
  shard::FlatState& flat_;
  device::Device& device_;
  device::Arena& arena_;
  model::TensorGroup tensor_;
  model::ContextGroup context_;
  comm::Communicator& context_comm_;
  Index seq_, window_;
  bool drops_;  ///< rows have numbers
  std::vector<model::Stage> stages_;
  std::vector<std::size_t> first_units_;  ///< of the stages, in the layout
  std::unique_ptr<comm::Communicator> activations_comm_, gradients_comm_;
  std::unique_ptr<Channel> activations_, gradients_;

  // Of the pass under way.
  std::map<Index, HostBatch> batches_;
  std::vector<data::MicroBatch> spares_;
  Index loaded_ = 0;
  std::map<Key, InFlight> in_flight_;
  std::vector<Key> expected_activations_, expected_gradients_;  ///< what neighbours send, in order
  std::size_t posted_activations_ = 0, posted_gradients_ = 0;
  RunnerTimes times_;
  const float* loss_scale_ = nullptr;
  const std::uint64_t* dropout_seed_ = nullptr;
};

}  // namespace cartan::train
