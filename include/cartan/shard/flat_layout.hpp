// Flat units: where each parameter of a rank lies in its buffers, and which part of each unit the rank owns.
//
// Units start at multiples of device::kSumBlock and are cut there, so that a block of the gradient norm
// belongs to one unit and one owner.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "cartan/core/canonical_tree.hpp"
#include "cartan/model/parameters.hpp"
#include "cartan/model/stage.hpp"

namespace cartan::shard {

/// How long the gradients of a micro-batch, or of a step, stay whole.
enum class GradientLife {
  step,   ///< every unit's gradients have a place of their own until the update
  fused,  ///< each unit is updated as soon as its gradients are complete, so all blocks share one place, and
          ///< so do the two gradients of a tied matrix. Possible where one rank computes the whole batch at
          ///< once.
  transient,  ///< they are reduced to their owners after each micro-batch; blocks take turns in two places
};

/// What a rank of the data plane keeps. Stages as in Rajbhandari et al. 2019 (ZeRO), arXiv:1910.02054, over
/// groups of `width` neighbours, as in Zhao et al. 2023 (FSDP), arXiv:2304.11277.
struct ShardPlace {
  int stage = 0;  ///< 0: everything; 1: its part of the states; 2: and of gradients; 3: and of parameters
  int rank = 0, size = 1;  ///< in the data plane
  int width = 1;           ///< ranks that share one set of states; divides size
};

/// A range of gradients that are computed together and reduced to owners; it is empty where nothing is
/// trained.
struct GradientPart {
  std::string name;
  Index elements = 0;  ///< with those that only other places of tensor parallelism have
  Index begin = 0;     ///< element of the buffers of whole gradients
  LeafRange owned;     ///< of the elements: what this rank updates
  LeafRange alone;     ///< of these: what no other rank of the data plane owns; norms and checkpoints use it
  Index owned_begin = 0;  ///< element of the buffers of owned parts
};

struct FlatUnit {
  Index number = 0;  ///< in describe_units
  const model::UnitSpec* spec = nullptr;
  Index elements = 0;         ///< of the parameters: those with gradients, then the frozen ones
  Index parameter_begin = 0;  ///< element of the buffer of whole parameters
  LeafRange frozen;           ///< of the elements: what this rank keeps of those without gradients
  Index frozen_begin = 0;     ///< element of the buffer of frozen parts, where that is not all
  GradientPart gradient;
  bool is_copy =
      false;  ///< of the tied embedding, beside the head of another stage; the first stage's counts
};

/// The units of a rank, by their numbers in describe_units, in the order of its stages.
struct StageUnits {
  std::vector<Index> numbers;
  /// The tied embedding is there for the head only, in front of the head's stage; another rank looks up.
  bool embedding_is_copy = false;
};
/// Of the stages [first, end).
StageUnits units_of_stages(const model::ModelConfig& config, const std::vector<model::StageRange>& stages);

class FlatLayout {
 public:
  FlatLayout(const model::ModelConfig& config, const StageUnits& units, GradientLife life,
             const ShardPlace& place, model::TensorSlice tensor = {});
  /// The whole model on one rank.
  explicit FlatLayout(const model::ModelConfig& config, GradientLife life = GradientLife::step);
  FlatLayout(const FlatLayout&) = delete;
  FlatLayout& operator=(const FlatLayout&) = delete;

  const std::vector<FlatUnit>& units() const { return units_; }
  /// Units of the whole model.
  Index model_units() const { return static_cast<Index>(specs_.size()); }
  GradientLife gradient_life() const { return life_; }
  const ShardPlace& place() const { return place_; }
  Index parameter_elements() const { return parameter_elements_; }
  Index gradient_elements() const { return gradient_elements_; }
  Index owned_elements() const { return owned_elements_; }    ///< of states
  Index frozen_elements() const { return frozen_elements_; }  ///< of the buffer of frozen parts
  Index owned_gradient_elements() const {
    return owned_gradients_;
  }                                          ///< owned_elements and the tied gradient's
  Index largest_unit(bool embedding) const;  ///< elements of the first unit, or of the others
  Index largest_gradient() const;

  /// Where a stage with look-up and tied head puts the head's gradient of the matrix. With fused updates that
  /// is the embedding's own place; else it is added to the embedding's after reduction.
  const std::optional<GradientPart>& tied_gradient() const { return tied_; }

 private:
  GradientPart make_part(const std::string& name, Index elements, Index begin);

  std::vector<model::UnitSpec> specs_;
  std::vector<FlatUnit> units_;
  GradientLife life_;
  ShardPlace place_;
  std::optional<GradientPart> tied_;
  Index parameter_elements_ = 0, gradient_elements_ = 0, owned_elements_ = 0, owned_gradients_ = 0,
        frozen_elements_ = 0;
};

/// Which elements of a unit: &GradientPart::owned or &GradientPart::alone.
using HeldRange = LeafRange GradientPart::*;

/// Visits the parameters of which a part lies in `elements` of a unit: visit(parameter, begin, end) with
/// elements of the unit.
template <class Visit>
void for_each_part_in(const FlatUnit& unit, LeafRange elements, const Visit& visit) {
  for (const model::ParameterSpec& parameter : unit.spec->parameters) {
    const Index begin = std::max(elements.begin, parameter.offset);
    const Index end = std::min(elements.end, parameter.offset + parameter.elements());
    if (begin < end) visit(parameter, begin, end);
  }
}

/// Visits the parameters of which a part lies in `range` of a unit: visit(unit, parameter, begin, end) with
/// elements of the parameter's part.
template <class Visit>
void for_each_part(const FlatLayout& layout, HeldRange range, const Visit& visit) {
  for (std::size_t u = 0; u < layout.units().size(); ++u) {
    const FlatUnit& unit = layout.units()[u];
    for_each_part_in(unit, unit.gradient.*range,
                     [&](const model::ParameterSpec& parameter, Index begin, Index end) {
                       visit(u, parameter, begin - parameter.offset, end - parameter.offset);
                     });
  }
}

/// The same for what this rank keeps of the parameters that are not trained.
template <class Visit>
void for_each_frozen_part(const FlatLayout& layout, const Visit& visit) {
  for (std::size_t u = 0; u < layout.units().size(); ++u)
    for_each_part_in(layout.units()[u], layout.units()[u].frozen,
                     [&](const model::ParameterSpec& parameter, Index begin, Index end) {
                       visit(u, parameter, begin - parameter.offset, end - parameter.offset);
                     });
}

}  // namespace cartan::shard
