// The parameters of a model as plain data: names (those of Hugging Face), global shapes, initial values, and
// the flat units they live in. Initialisation, sharding, buckets, checkpoints and import are all derived from
// this list.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cartan/model/config.hpp"

namespace cartan::model {

enum class Init { normal, ones, zeros };

struct ParameterSpec {
  std::string name;          ///< "model.layers.0.self_attn.q_proj.weight"
  std::vector<Index> shape;  ///< logical, row-major
  Index offset = 0;          ///< first element inside the unit
  bool decayed = false;      ///< weight decay applies: matrices only
  Init init = Init::normal;
  std::optional<int> tensor_dim;  ///< dimension that tensor parallelism splits; none: replicated
  Index elements() const;
};

/// A granule of gathering, bucketing and sharding: the embedding, a block, or the head. Parameters follow
/// each other without gaps, q, k, v and gate, up in this order, so that each group is also one matrix.
struct UnitSpec {
  std::string name;
  std::vector<ParameterSpec> parameters;
  Index elements = 0;

  /// Throws InternalError if there is no such parameter.
  const ParameterSpec& parameter(const std::string& name) const;
};

/// Units in the order of the forward pass: embedding, layers, head.
std::vector<UnitSpec> describe_units(const ModelConfig& config);

/// Values of elements [first, first + out.size()) of a parameter at the start of training: a function of
/// (seed, name, element), so any shard can be made anywhere. Normal with init_std; projections that write to
/// the residual stream (o_proj, down_proj) with init_std / sqrt(2 layers) (Radford et al. 2019, GPT-2).
void initial_values(const ModelConfig& config, const ParameterSpec& parameter, std::uint64_t seed,
                    Index first, std::span<float> out);

}  // namespace cartan::model
