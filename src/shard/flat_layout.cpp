#include "cartan/shard/flat_layout.hpp"

#include "cartan/core/narrow.hpp"
#include "cartan/device/ops.hpp"

namespace cartan::shard {
namespace {

Index round_up(Index elements) { return ceil_div(elements, device::kSumBlock) * device::kSumBlock; }

}  // namespace

FlatLayout::FlatLayout(const model::ModelConfig& config, model::StageRange range)
    : specs_(model::describe_units(config)) {
  for (Index i = 0; i < narrow<Index>(specs_.size()); ++i) {
    const model::UnitSpec& spec = specs_[static_cast<std::size_t>(i)];
    const Index blocks = ceil_div(spec.elements, device::kSumBlock);
    if (i >= range.first && i < range.end) {
      units_.push_back({&spec, parameter_elements_, gradient_elements_,
                        gradient_elements_ + round_up(spec.gradient_elements), model_blocks_, blocks});
      parameter_elements_ += round_up(spec.elements);
      gradient_elements_ += round_up(spec.gradient_elements);
    }
    model_blocks_ += blocks;
  }
}

}  // namespace cartan::shard
