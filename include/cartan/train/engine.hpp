// The training step, written once for every device: micro-batches forward and backward, reduction beside it,
// clipping, update. What the run around it does (files, signals, log) is the trainer's.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "cartan/comm/mesh_groups.hpp"
#include "cartan/data/loader.hpp"
#include "cartan/device/arena.hpp"
#include "cartan/device/device.hpp"
#include "cartan/model/fp8.hpp"
#include "cartan/optim/adamw.hpp"
#include "cartan/optim/loss_scaler.hpp"
#include "cartan/pipeline/schedule.hpp"
#include "cartan/shard/gradient_reducer.hpp"
#include "cartan/train/config.hpp"

namespace cartan::train {

/// Fills in the next micro-batch, whose arrays may be reused; throws if there is none.
using NextBatch = std::function<void(data::MicroBatch&)>;

/// Seconds of the phases of one step on this rank.
struct StepTimes {
  double data = 0;       ///< waiting for micro-batches
  double compute = 0;    ///< forward and backward
  double pipeline = 0;   ///< waiting for neighbouring stages
  double exposed = 0;    ///< waiting for reductions after the backward pass
  double optimizer = 0;  ///< norm, clipping, update
};

struct StepResult {
  double loss = 0;       ///< mean over all target tokens of the global batch, before the update
  double grad_norm = 0;  ///< before clipping
  Index targets = 0;     ///< tokens with a loss
  double loss_scale = 1;
  bool applied = true;  ///< false: a gradient overflowed in fp16, and nothing was updated
  StepTimes times;
};

struct LossSum {
  double loss = 0;
  Index targets = 0;
  double mean() const { return loss / static_cast<double>(targets); }
};

struct StepArenas;

class Engine {
 public:
  /// `config` is resolved for `mesh`; everything the step needs is allocated here. Communication of gradients
  /// and parameters runs on a stream of its own where `overlap`. Collective over the mesh, which must outlive
  /// the engine.
  Engine(const Config& config, device::Device& device, comm::Mesh& mesh, bool overlap);
  ~Engine();

  shard::FlatState& state();
  const shard::FlatLayout& layout() const;
  /// This rank's sequences of each global batch.
  const data::LeafShare& share() const;
  const pipeline::Schedule& schedule() const;
  /// Its state belongs to a checkpoint.
  optim::LossScaler& loss_scaler();
  /// Likewise; null without precision.products = fp8.
  model::Fp8Scales* fp8_scales();

  /// Update number `update` (1-based) at rate `lr`. Throws NumericError that names step and first tensor
  /// where the loss or a gradient is not finite; in fp16 the update is then left out and the loss scale
  /// falls. Collective.
  StepResult train_step(Index update, double lr, const NextBatch& next);
  /// Summed loss of one global batch, without gradients. Collective.
  LossSum evaluate(const NextBatch& next);
  /// After a step: names the first parameter that not all of its holders have with the same bits, and their
  /// ranks; empty where all agree. Collective.
  std::string find_replica_difference();

 private:
  struct State;
  /// Memory for a step's activations, as large as a rehearsal on `sim` needs.
  static StepArenas plan_arenas(const Config& config, device::Device& device, comm::Mesh& mesh);
  std::unique_ptr<State> state_;
};

/// Device bytes of a rank of this configuration by kind, found by building the engine on `sim`.
device::MemoryUsage predict_memory(const Config& config, int rank);

}  // namespace cartan::train
