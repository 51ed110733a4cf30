// A trained model in memory, for evaluation and generation: parameters only.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "cartan/comm/mesh_groups.hpp"
#include "cartan/device/device.hpp"
#include "cartan/train/model_source.hpp"

namespace cartan::train {

/// What a place of a mesh has of a model: the units of its stage, each with the slice of its place of tensor
/// parallelism. Ranks that differ in dp or cp have the same.
struct LoadedModel {
  std::filesystem::path path;  ///< of the checkpoint or folder
  model::ModelConfig config;   ///< of the whole model
  RunState run;
  model::StageRange stage;                    ///< of the whole model's units
  std::unique_ptr<comm::Communicator> alone;  ///< the group of the state, which is not sharded any further
  std::unique_ptr<shard::FlatLayout> layout;
  std::unique_ptr<shard::FlatState> state;
};

/// Loads what ModelSource finds and throws likewise; each rank reads its part only. `cut` is the value of
/// pipeline.cut, with which the model is cut into mesh.pp stages (flops: those of one token). Throws
/// ConfigError where the mesh does not fit the model. Collective over the mesh.
LoadedModel load_model(const ModelSource& source, DType compute, device::Device& device, comm::Mesh& mesh,
                       const std::string& cut = "flops");
LoadedModel load_model(const std::filesystem::path& from, DType compute, device::Device& device,
                       comm::Mesh& mesh, const std::string& cut = "flops");

}  // namespace cartan::train
