// Which units of the model each part of a pipeline holds.
#pragma once

#include <string>
#include <vector>

#include "cartan/model/stage.hpp"

namespace cartan::pipeline {

/// Cuts the units of `config` (embedding, blocks, head) into `parts` consecutive ranges, in the order of the
/// parts. `how` is the value of pipeline.cut:
/// - "layers": blocks evenly, earlier parts get one more; the embedding goes with the first part, the head
///   with the last.
/// - "flops": the largest part has as few FLOPs as possible at this sequence length; the look-up counts as
///   nothing. Among such cuts the most even one, with smaller parts first, where most activations are kept. A
///   part may hold the head alone.
/// - "3,4,5": so many blocks for each part.
/// Every part gets a unit. Throws ConfigError that says what would fit.
std::vector<model::StageRange> cut_units(const model::ModelConfig& config, Index sequence_length, int parts,
                                         const std::string& how);

/// "embedding, layers 0-3", "layers 4-6", "layer 7, head" for each range of the units of a model with so many
/// layers.
std::vector<std::string> describe_ranges(const std::vector<model::StageRange>& ranges, Index layers);

/// Adds a problem unless `how` is one of the words or a list of whole numbers.
void check_cut(const std::string& how, Problems& problems);

}  // namespace cartan::pipeline
