// Between the numbers in memory and the logical tensors of a checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cartan/comm/communicator.hpp"
#include "cartan/model/config.hpp"
#include "cartan/model/fp8.hpp"
#include "cartan/optim/loss_scaler.hpp"
#include "cartan/shard/flat_state.hpp"
#include "cartan/store/checkpoint.hpp"

namespace cartan::train {

/// The model whose parameters a training leaves as they are, and of which its checkpoints hold no copy.
struct BaseModel {
  std::string path;  ///< folder or checkpoint; empty: the initial values of `seed`
  std::uint64_t seed = 0;
  std::uint64_t fingerprint = 0;  ///< of its parameters, as ModelSource::fingerprint gives it
};

/// Where a run stands; what /state of a checkpoint holds beside the configuration.
struct RunState {
  Index step = 0;                                   ///< updates done
  Index samples = 0;                                ///< sequences taken from the training data
  Index tokens = 0;                                 ///< target tokens trained on
  double loss = 0;                                  ///< of the last step
  Index skipped = 0;                                ///< steps without an update, in fp16
  std::optional<optim::LossScaleState> loss_scale;  ///< in fp16
  std::optional<BaseModel> base;                    ///< where not all parameters are trained
  Index updates() const { return step - skipped; }
};

Json to_json(const RunState& state, const model::ModelConfig& model, Index tree_leaves,
             const std::string& config_ini);
/// Throws DataError that names `where`.
RunState run_state_from_json(const Json& json, const std::string& where);

/// The tensors of a checkpoint (trained parameters, their moments; with `fp8`, which may be null, the history
/// of its maxima), in file order.
std::vector<store::TensorInfo> checkpoint_tensors(const model::ModelConfig& model,
                                                  const model::Fp8Scales* fp8);
/// The element ranges that this rank writes: what it alone stands for; rank 0 (`is_first`) writes what all
/// have. They point into memory of the device (store::SlabCopy).
std::vector<store::Slab> checkpoint_slabs(const std::vector<store::TensorInfo>& tensors,
                                          const shard::FlatState& state, const model::Fp8Scales* fp8,
                                          bool is_first);

/// The description of a checkpoint's model. Throws DataError.
model::ModelConfig model_of(const store::CheckpointReader& reader);
/// The name of a parameter among a checkpoint's tensors.
std::string parameter_path(const std::string& parameter);
/// Reads elements [first, first + count) of a parameter.
void read_parameter(const store::CheckpointReader& reader, const std::string& parameter, Index first,
                    Index count, float* out);
/// Throws DataError where a checkpoint has no tensor of this name, or one of another shape or not in fp32.
void check_tensor(const store::CheckpointReader& reader, const std::string& name,
                  const std::vector<Index>& shape);
/// Throws ConfigError that lists each entry in which the model that is found at `path` differs from `wanted`,
/// as far as it has an effect on the values of parameters or on what is computed with them.
void check_same_model(const model::ModelConfig& found, const std::filesystem::path& path,
                      const model::ModelConfig& wanted);
/// Reads elements [first, first + count) of a whole parameter.
using ReadElements = std::function<void(const model::ParameterSpec&, Index first, Index count, float* out)>;
/// Fills what `state` keeps of all parameters; FlatState::refresh_compute is to follow.
void load_parameters(const ReadElements& read, shard::FlatState& state);
/// Fills what it owns of the trained ones and their moments, from a checkpoint whose model must be `model`.
/// Throws DataError for what is missing or has another shape.
void load(const store::CheckpointReader& reader, const model::ModelConfig& model, shard::FlatState& state);

/// Takes up the history of a checkpoint; one without it leaves the scales as they are.
void load_fp8(const store::CheckpointReader& reader, model::Fp8Scales& fp8);

}  // namespace cartan::train
