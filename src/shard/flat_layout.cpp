#include "cartan/shard/flat_layout.hpp"

#include <algorithm>

#include "cartan/core/narrow.hpp"
#include "cartan/device/ops.hpp"

namespace cartan::shard {
FlatLayout::FlatLayout(const model::ModelConfig& config, model::StageRange range, GradientLife life)
    : specs_(model::describe_units(config)), life_(life) {
  const auto last = narrow<Index>(specs_.size()) - 1;
  std::optional<Index>
      shared;  // the place that all blocks share in a transient layout; they have equal sizes
  for (Index i = 0; i <= last; ++i) {
    const model::UnitSpec& spec = specs_[static_cast<std::size_t>(i)];
    const Index blocks = ceil_div(spec.elements, device::kSumBlock);
    if (i >= range.first && i < range.end) {
      const Index size = round_up(spec.elements, device::kSumBlock);
      const bool shares = life == GradientLife::transient && i > 0 && i < last;
      const bool is_placed = shares && shared.has_value();
      const Index begin = is_placed ? *shared : gradient_elements_;
      if (shares) shared = begin;
      units_.push_back({&spec, parameter_elements_, begin, begin + size, model_blocks_, blocks});
      parameter_elements_ += size;
      if (!is_placed) gradient_elements_ += size;
    }
    model_blocks_ += blocks;
  }
  if (!config.tied || range.end != last + 1) return;
  if (life == GradientLife::transient) {
    tied_gradient_begin_ = units_.front().gradient_begin;
  } else {
    tied_gradient_begin_ = gradient_elements_;
    gradient_elements_ += round_up(config.vocab * config.hidden, device::kSumBlock);
    units_.back().gradient_end = gradient_elements_;
  }
}

}  // namespace cartan::shard
