// Where the parameters of a model come from: a checkpoint, a run directory, or a Hugging Face folder. One set
// of keys and commands takes all of them (model.from, --from).
#pragma once

#include <filesystem>
#include <optional>

#include "cartan/comm/communicator.hpp"
#include "cartan/store/model_folder.hpp"
#include "cartan/train/snapshot.hpp"

namespace cartan::train {

/// The model's description without its parameters: of a Hugging Face folder, a checkpoint, or a run
/// directory's newest one, whose parameters are not verified. Needs no MPI. Throws MissingError, IoError,
/// DataError.
model::ModelConfig describe_model(const std::filesystem::path& from);

class ModelSource {
 public:
  /// Finds, and verifies a checkpoint. Throws MissingError, IoError, DataError. Collective over `comm`.
  ModelSource(const std::filesystem::path& from, comm::Communicator& comm);

  /// Of the checkpoint or the folder.
  const std::filesystem::path& path() const { return path_; }
  const model::ModelConfig& config() const { return config_; }
  /// Where the training stood; of a folder: at its beginning.
  const RunState& run() const { return run_; }
  /// Fills what `state` owns of the parameters of `model`, which may differ in what has no effect on the
  /// parameters; FlatState::refresh_compute is to follow. Throws ConfigError that lists what differs.
  void load(const model::ModelConfig& model, shard::FlatState& state) const;
  /// Reads elements [first, first + count) of a parameter. Several threads may read at once.
  void read(const std::string& parameter, Index first, Index count, float* out) const;
  /// The INI text of the run that wrote a checkpoint; empty for a folder.
  std::string configuration() const;

 private:
  std::filesystem::path path_;
  std::optional<store::CheckpointReader> checkpoint_;
  std::optional<store::ModelFolder> folder_;
  model::ModelConfig config_;
  RunState run_;
};

}  // namespace cartan::train
