// A trained model in memory, for evaluation and generation: parameters only.
#pragma once

#include <filesystem>
#include <memory>

#include "cartan/comm/communicator.hpp"
#include "cartan/device/device.hpp"
#include "cartan/train/model_source.hpp"

namespace cartan::train {

struct LoadedModel {
  std::filesystem::path path;  ///< of the checkpoint or folder
  model::ModelConfig config;
  RunState run;
  std::unique_ptr<comm::Communicator> alone;  ///< the group of the state: each rank has the whole model
  std::unique_ptr<shard::FlatLayout> layout;
  std::unique_ptr<shard::FlatState> state;
};

/// Loads what ModelSource finds and throws likewise. Collective over `comm`; each rank gets the whole model.
LoadedModel load_model(const ModelSource& source, DType compute, device::Device& device,
                       comm::Communicator& comm);
LoadedModel load_model(const std::filesystem::path& from, DType compute, device::Device& device,
                       comm::Communicator& comm);

}  // namespace cartan::train
