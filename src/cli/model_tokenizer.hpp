// What belongs to a model beside its parameters, as far as a checkpoint or a folder tells: the tokenizer, and
// the length of texts.
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

/// Tokens that an evaluation gives the model at a time, unless it is told: the model's length, but at most
/// 2048; where that is not known, the samples' of the run that wrote the checkpoint, or 1024.
Index length_of(const train::ModelSource& source);

}  // namespace cartan::cli
