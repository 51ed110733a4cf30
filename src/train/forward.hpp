// The forward pass alone, of a model that lies on a mesh: sequences of one length, shared over dp, each rank
// of pp, cp and tp with its part of them.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "cartan/train/loaded_model.hpp"
#include "train/stage_runner.hpp"

namespace cartan::train {

struct ForwardShape {
  Index sequences = 0;
  Index length = 0;       ///< tokens of each
  Index rope_length = 0;  ///< tokens for which rotary frequencies are chosen; 0: length
};

class Forward {
 public:
  /// Fills in `batch` with the sequences [first, first + count).
  using Fill = std::function<void(Index first, Index count, data::Batch& batch)>;

  /// With memory for what a micro-batch needs. Throws ConfigError for a mesh.tp-grid of several rows, and
  /// EnvironmentError where a pipeline needs more than MPI allows. Collective over the mesh.
  Forward(const LoadedModel& model, const ForwardShape& shape, device::Device& device, comm::Mesh& mesh,
          bool overlap);
  ~Forward();

  /// All sequences once. hooks.losses gets the number of a micro-batch's first sequence; rows that fill a
  /// batch or a length up have no target. Collective.
  void run(const Fill& fill, const RunnerHooks& hooks);

  /// Rows of each sequence that this rank computes, and how many ranks cut them.
  Index padded_length() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cartan::train
