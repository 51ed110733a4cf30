#include "cartan/train/model_source.hpp"

#include "cartan/core/json.hpp"
#include "cartan/core/log.hpp"
#include "cartan/store/model_config_file.hpp"

namespace cartan::train {
namespace {

namespace fs = std::filesystem;

/// The checkpoint, verified.
fs::path find_checkpoint(const fs::path& from, comm::Communicator& comm) {
  if (!fs::is_directory(from)) {
    comm::all_or_none(comm, "verifying the checkpoint",
                      [&] { store::CheckpointReader(from).verify_part(comm.rank(), comm.size()); });
    return from;
  }
  const auto found = store::find_newest_good(from, comm);
  if (!found)
    throw MissingError("{}: neither a good checkpoint nor a config.json in this directory", from.string());
  if (comm.rank() == 0)
    for (const std::string& rejected : found->rejected)
      log::warning("store", "checkpoint passed over: {}", rejected);
  return found->path;
}

}  // namespace

model::ModelConfig describe_model(const fs::path& from) {
  if (store::is_model_folder(from)) return store::read_model_config(from / "config.json");
  if (!fs::is_directory(from)) return model_of(store::CheckpointReader(from));
  const std::vector<Index> steps = store::checkpoint_steps(from);
  if (steps.empty())
    throw MissingError("{}: neither a checkpoint nor a config.json in this directory", from.string());
  return model_of(store::CheckpointReader(store::checkpoint_path(from, steps.back())));
}

ModelSource::ModelSource(const fs::path& from, comm::Communicator& comm)
    : path_(store::is_model_folder(from) ? from : find_checkpoint(from, comm)) {
  comm::all_or_none(comm, "opening the model", [&] {
    if (store::is_model_folder(path_)) {
      folder_.emplace(path_);
      config_ = folder_->config();
      return;
    }
    checkpoint_.emplace(path_);
    config_ = model_of(*checkpoint_);
    run_ = run_state_from_json(checkpoint_->state(), path_.string());
  });
}

void ModelSource::load(const model::ModelConfig& model, shard::FlatState& state) const {
  check_same_model(config_, path_, model);
  if (folder_) {
    load_parameters(*folder_, state);
  } else {
    load_parameters(*checkpoint_, state);
  }
}

void ModelSource::read(const std::string& parameter, Index first, Index count, float* out) const {
  if (folder_)
    folder_->read(parameter, first, count, out);
  else
    read_parameter(*checkpoint_, parameter, first, count, out);
}

std::string ModelSource::configuration() const {
  return checkpoint_ ? checkpoint_->state().value("config", std::string()) : std::string();
}

}  // namespace cartan::train
