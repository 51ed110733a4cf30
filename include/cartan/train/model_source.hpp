// Where the parameters of a model come from: a checkpoint, a run directory, a Hugging Face folder, or
// adapters beside one of them. One set of keys and commands takes all of them (model.from, --from).
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "cartan/comm/communicator.hpp"
#include "cartan/store/adapter_folder.hpp"
#include "cartan/store/model_folder.hpp"
#include "cartan/train/snapshot.hpp"

namespace cartan::train {

/// The model's description without its parameters: of a Hugging Face folder, adapters and their base, a
/// checkpoint, or a run directory's newest one, whose parameters are not verified. Needs no MPI. Throws
/// MissingError, IoError, DataError.
model::ModelConfig describe_model(const std::filesystem::path& from);

struct SourceOptions {
  /// Where the model is is that adapters, or parameters that were trained alone, belong to; empty: where they
  /// say.
  std::string base{};
  std::string adapters{};    ///< a folder of adapters that replace those of `from`, or come to it
  bool is_verified = false;  ///< a checkpoint that needs no verification
};

class ModelSource {
 public:
  /// Finds, and verifies a checkpoint. Throws MissingError, IoError, DataError. Collective over `comm`.
  ModelSource(const std::filesystem::path& from, comm::Communicator& comm, const SourceOptions& options = {});
  ModelSource(ModelSource&&) noexcept;
  ~ModelSource();

  /// Of the checkpoint or the folder.
  const std::filesystem::path& path() const { return path_; }
  const model::ModelConfig& config() const { return config_; }
  /// Where the training stood; of a folder: at its beginning.
  const RunState& run() const { return run_; }
  /// Fills what `state` keeps of the parameters of `model`, which may differ in what has no effect on the
  /// parameters, or have adapters that are not here: these get the initial values of `seed`.
  /// FlatState::refresh_compute is to follow. Throws ConfigError that lists what differs.
  void load(const model::ModelConfig& model, shard::FlatState& state, std::uint64_t seed = 0) const;
  /// Reads elements [first, first + count) of a parameter. Several threads may read at once.
  void read(const std::string& parameter, Index first, Index count, float* out) const;
  /// The same of the model without adapters, which are added to the weights: W + alpha / rank * B A, summed
  /// in fp64 and rounded once.
  void read_merged(const std::string& parameter, Index first, Index count, float* out) const;
  /// The INI text of the run that wrote a checkpoint; empty for a folder.
  std::string configuration() const;
  /// The model that adapters here belong to; empty where nothing names it.
  std::string base_path() const;
  /// What a training that begins here, and does not train all of it, leaves as it is: this model, or its base
  /// where only adapters are here. Reads a little of every parameter.
  BaseModel as_base() const;

 private:
  void open(const std::filesystem::path& from, comm::Communicator& comm, const SourceOptions& options);
  void open_base(const BaseModel& base, const std::string& given, comm::Communicator& comm);
  void take_adapters(const std::filesystem::path& folder);
  bool holds(const std::string& parameter) const;
  /// Whether all else comes from the base.
  bool has_adapters_only() const;
  std::uint64_t fingerprint() const;

  std::filesystem::path path_;
  std::optional<store::CheckpointReader> checkpoint_;
  std::optional<store::ModelFolder> folder_;
  std::optional<store::AdapterFolder> adapters_;
  std::unique_ptr<ModelSource> base_;          ///< has what is not here
  std::optional<std::uint64_t> initial_seed_;  ///< or these initial values are it
  model::ModelConfig config_;
  RunState run_;
  std::unordered_map<std::string, model::ParameterSpec> parameters_;
};

/// Opens what a training did not train (RunState::base) and fills it into `state`: from where it was, or from
/// `given` if it is there no more. Throws MissingError, IoError, and DataError where it is another model.
/// Collective over `comm`.
void load_base(const BaseModel& base, const std::string& given, const model::ModelConfig& model,
               shard::FlatState& state, comm::Communicator& comm);

}  // namespace cartan::train
