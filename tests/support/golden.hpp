// Golden data: where it lies, and its tensors by parameter.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cartan/core/json.hpp"
#include "cartan/model/config.hpp"
#include "cartan/shard/flat_state.hpp"
#include "cartan/store/safetensors.hpp"
#include "cartan/train/whole_tensors.hpp"

namespace cartan::testing {

/// A file or folder of the golden data: the repository's own part first, then a larger set beside the
/// checkout.
std::optional<std::filesystem::path> find_golden(const std::string& relative);

/// Models of which the folder and the given expected files can be found.
std::vector<std::string> golden_models(const std::vector<std::string>& expected_files);

/// The model description in a config.json.
model::ModelConfig read_hf_config(const std::filesystem::path& folder);
/// Every parameter of a folder.
train::Tensors read_hf_tensors(const std::filesystem::path& folder);
/// A file with a tensor for each of the model's files' tensors, as that of gradients is, by parameter.
train::Tensors read_expected(const std::filesystem::path& path, const model::ModelConfig& config);
/// Copies tensors into the master parameters, and into fp32 ones that are not trained; every parameter must
/// be there.
void fill_parameters(shard::FlatState& state, const train::Tensors& tensors);

using train::Distance;
using train::distance;
using train::gather_tensors;
using train::gradient_values;
using train::master_values;

}  // namespace cartan::testing
