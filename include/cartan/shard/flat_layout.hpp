// Flat units: where each parameter of a stage lies in the one buffer for parameters (and moments) and in the
// one for gradients. Units start at multiples of device::kSumBlock, so that a block of a gradient norm
// belongs to one unit.
#pragma once

#include <optional>
#include <vector>

#include "cartan/model/parameters.hpp"
#include "cartan/model/stage.hpp"

namespace cartan::shard {

struct FlatUnit {
  const model::UnitSpec* spec = nullptr;
  Index parameter_begin = 0;  ///< element of the parameter buffer
  Index gradient_begin = 0;   ///< element of the gradient buffer
  Index gradient_end = 0;     ///< rounded up to a block
  Index first_block = 0;      ///< number of its first block among the blocks of all units of the model
  Index blocks = 0;           ///< blocks that its parameters fill; the last one may be short
};

/// How long gradients live.
enum class GradientLife {
  step,       ///< every unit's gradients have a place of their own until the update
  transient,  ///< each unit is updated as soon as its gradients are complete, so all blocks share one place,
              ///< and so do the two gradients of a tied matrix. Possible where one rank computes the whole
              ///< batch at once.
};

class FlatLayout {
 public:
  FlatLayout(const model::ModelConfig& config, model::StageRange range,
             GradientLife life = GradientLife::step);
  FlatLayout(const FlatLayout&) = delete;
  FlatLayout& operator=(const FlatLayout&) = delete;

  const std::vector<FlatUnit>& units() const { return units_; }
  Index parameter_elements() const { return parameter_elements_; }
  Index gradient_elements() const { return gradient_elements_; }
  GradientLife gradient_life() const { return life_; }
  /// Where the head of a tied model, which has no matrix of its own, puts the gradient of the embedding
  /// matrix: elements of the gradient buffer. In a transient layout that is the embedding's own place; else
  /// it is added to it after reduction.
  std::optional<Index> tied_gradient_begin() const { return tied_gradient_begin_; }
  /// Blocks of the whole model: the leaves of the gradient norm's canonical tree.
  Index model_blocks() const { return model_blocks_; }

 private:
  std::vector<model::UnitSpec> specs_;
  std::vector<FlatUnit> units_;
  GradientLife life_;
  std::optional<Index> tied_gradient_begin_;
  Index parameter_elements_ = 0, gradient_elements_ = 0, model_blocks_ = 0;
};

}  // namespace cartan::shard
