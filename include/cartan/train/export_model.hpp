// A model, or its adapters, as a folder for other programs.
#pragma once

#include <filesystem>

#include "cartan/comm/communicator.hpp"
#include "cartan/store/model_folder_writer.hpp"
#include "cartan/train/model_source.hpp"

namespace cartan::train {

/// Adapters go alone, in PEFT's layout, unless they are to be `merged` into the weights; a model without
/// adapters goes whole. `config` is the source's, perhaps of another family. Collective over `comm`; throws
/// as store::write_model_folder and store::write_adapter_folder do.
store::FolderReport export_model(const ModelSource& source, const model::ModelConfig& config,
                                 const std::filesystem::path& folder, bool merged,
                                 const store::FolderOptions& options, comm::Communicator& comm);

}  // namespace cartan::train
