// The parameters of a model as plain data: names (those of Hugging Face), global shapes, initial values, and
// the flat units they live in. Initialisation, sharding, buckets, checkpoints and import are all derived from
// this list.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cartan/model/config.hpp"

namespace cartan::model {

enum class Init { normal, ones, zeros, uniform };

/// A place on the axis of tensor parallelism.
struct TensorSlice {
  int index = 0, count = 1;
};

/// A parameter, and the part of it that a place of tensor parallelism holds. This is the one declaration from
/// which initial values, gradient sums, norms and checkpoints are derived on every mesh.
struct ParameterSpec {
  std::string name;          ///< "model.layers.0.self_attn.q_proj.weight"
  std::vector<Index> shape;  ///< logical, row-major
  Index offset = 0;          ///< first element of the part inside the unit
  bool decayed = false;      ///< weight decay applies: matrices only
  Init init = Init::normal;
  std::optional<int> tensor_dim;  ///< dimension that tensor parallelism splits; none: replicated
  std::vector<Index> part;        ///< shape of the part
  Index first = 0;                ///< where the part begins along tensor_dim
  /// Places that hold the same part, neighbours. Each computes a summand of its gradient.
  int sharers = 1;
  bool stands_alone = true;  ///< the first of the sharers, which counts for all in norms and checkpoints
  bool trained = true;       ///< has gradients and states

  Index elements() const;  ///< of the part
};

/// Visits the contiguous runs of elements [begin, end) of a parameter's part: visit(first element in the
/// whole tensor, first element in the part, count).
template <class Visit>
void for_each_run(const ParameterSpec& parameter, Index begin, Index end, const Visit& visit) {
  Index row = 1, whole_row = 1;  // elements of one step along what is split, or all
  const auto dim = static_cast<std::size_t>(parameter.tensor_dim.value_or(0));
  for (std::size_t d = dim; d < parameter.shape.size(); ++d) {
    row *= parameter.part[d];
    whole_row *= parameter.shape[d];
  }
  const Index step = parameter.shape.empty() ? 1 : whole_row / std::max<Index>(1, parameter.shape[dim]);
  while (begin < end) {
    const Index outer = begin / row, inside = begin % row;
    const Index count = std::min(end - begin, row - inside);
    visit(outer * whole_row + parameter.first * step + inside, begin, count);
    begin += count;
  }
}

/// A granule of gathering, bucketing and sharding: the embedding, a block, or the head. Parameters follow
/// each other, first those that are trained, then the others. Of both, in a block, the replicated ones come
/// first, then q, k, v and gate, up in this order, so that each group is also one matrix.
struct UnitSpec {
  std::string name;
  Index layer = -1;  ///< of a block, from 0
  std::vector<ParameterSpec> parameters;
  /// In front, for what is trained: as many on every place of tensor parallelism, so that what several
  /// places share lies at the same elements on all of them.
  Index trained = 0;
  Index elements = 0;  ///< with the others

  /// Throws InternalError if there is no such parameter.
  const ParameterSpec& parameter(const std::string& name) const;
};

/// Units in the order of the forward pass: embedding, layers, head; with the parts of a place of tensor
/// parallelism. q is split by heads, k and v by key/value heads (shared where there are fewer than places),
/// gate, up and down by columns of the feed-forward layer, embedding and head by the vocabulary. Parts differ
/// by one where a number does not divide.
std::vector<UnitSpec> describe_units(const ModelConfig& config, TensorSlice tensor = {});

/// The sizes of the part that a place computes: heads, key/value heads, ffn and vocabulary.
ModelConfig part_of(const ModelConfig& config, TensorSlice tensor);
/// First row of the place's part of the vocabulary.
Index first_vocabulary_row(const ModelConfig& config, TensorSlice tensor);

/// Values of elements [first, first + out.size()) of a parameter at the start of training: a function of
/// (seed, name, element), so any shard can be made anywhere. Normal with init_std; projections that write to
/// the residual stream (o_proj, down_proj) with init_std / sqrt(2 layers) (Radford et al. 2019, GPT-2).
/// Of adapters, A is uniform within 1 / sqrt(K) and B zero, as PEFT begins.
void initial_values(const ModelConfig& config, const ParameterSpec& parameter, std::uint64_t seed,
                    Index first, std::span<float> out);

}  // namespace cartan::model
