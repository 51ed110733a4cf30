// Flat units: where each parameter of a stage lies in the one buffer for parameters (and moments) and in the
// one for gradients. Units start at multiples of device::kSumBlock, so that a block of a gradient norm
// belongs to one unit.
#pragma once

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

class FlatLayout {
 public:
  FlatLayout(const model::ModelConfig& config, model::StageRange range);
  FlatLayout(const FlatLayout&) = delete;
  FlatLayout& operator=(const FlatLayout&) = delete;

  const std::vector<FlatUnit>& units() const { return units_; }
  Index parameter_elements() const { return parameter_elements_; }
  Index gradient_elements() const { return gradient_elements_; }
  /// Blocks of the whole model: the leaves of the gradient norm's canonical tree.
  Index model_blocks() const { return model_blocks_; }

 private:
  std::vector<model::UnitSpec> specs_;
  std::vector<FlatUnit> units_;
  Index parameter_elements_ = 0, gradient_elements_ = 0, model_blocks_ = 0;
};

}  // namespace cartan::shard
