// Golden data: where it lies, and a loader for its Hugging Face folders that is good enough for tests.
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

namespace cartan::testing {

/// A file or folder of the golden data: the repository's own part first, then a larger set beside the
/// checkout.
std::optional<std::filesystem::path> find_golden(const std::string& relative);

/// Models of which the folder and the given expected files can be found.
std::vector<std::string> golden_models(const std::vector<std::string>& expected_files);

/// The model description in a config.json.
model::ModelConfig read_hf_config(const std::filesystem::path& folder);
/// Every tensor of a folder, as floats, by name.
std::map<std::string, std::vector<float>> read_hf_tensors(const std::filesystem::path& folder);
/// Copies tensors into the master parameters; every parameter must be there.
void fill_parameters(shard::FlatState& state, const std::map<std::string, std::vector<float>>& tensors);
/// What the master parameters (or the reduced gradients, times `scale`) hold, by name: all that this rank
/// owns; with `world`, only what it alone stands for, zeros elsewhere, to be summed by gather_tensors.
std::map<std::string, std::vector<float>> master_values(const shard::FlatState& state,
                                                        comm::Communicator* world = nullptr);
std::map<std::string, std::vector<float>> gradient_values(const shard::FlatState& state, double scale,
                                                          comm::Communicator* world = nullptr);
/// The whole tensors of a model from the parts of all ranks, bit by bit. Collective.
std::map<std::string, std::vector<float>> gather_tensors(
    const model::ModelConfig& config, const std::map<std::string, std::vector<float>>& mine,
    comm::Communicator& world);

/// norm(a - b), norm(b), and the largest |a - b|.
struct Distance {
  double difference = 0, norm = 0, largest = 0;
};
Distance distance(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace cartan::testing
