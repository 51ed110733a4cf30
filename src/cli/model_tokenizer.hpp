// The tokenizer that belongs to a model, as far as a checkpoint or a folder tells.
#pragma once

#include <filesystem>
#include <string>

#include "cartan/train/model_source.hpp"

namespace cartan::cli {

/// As data.tokenizer would name it: that of the folder, of the run that wrote the checkpoint, or of the
/// folder that this run began with, if it is still there; else byte.
std::string tokenizer_of(const train::ModelSource& source);

/// The folder whose tokenizer and token ids an export of the model passes on; empty where none is known.
std::filesystem::path tokenizer_folder_of(const train::ModelSource& source);

}  // namespace cartan::cli
