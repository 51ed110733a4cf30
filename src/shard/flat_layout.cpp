#include "cartan/shard/flat_layout.hpp"

#include <algorithm>
#include <numeric>

#include "cartan/comm/communicator.hpp"
#include "cartan/core/narrow.hpp"
#include "cartan/device/ops.hpp"

namespace cartan::shard {

StageUnits units_of_stages(const model::ModelConfig& config, const std::vector<model::StageRange>& stages) {
  StageUnits units;
  for (const model::StageRange& stage : stages) {
    if (config.tied && stage.first > 0 && stage.end == config.layers + 2) {
      units.embedding_is_copy = true;
      units.numbers.push_back(0);
    }
    for (Index unit = stage.first; unit < stage.end; ++unit) units.numbers.push_back(unit);
  }
  return units;
}

GradientPart FlatLayout::make_part(const std::string& name, Index elements, Index begin) {
  GradientPart part{name, elements, begin, {0, elements}, {}, owned_gradients_};
  part.alone = comm::chunk_range(elements, place_.rank, place_.size, place_.width);
  if (place_.stage > 0) part.owned = comm::chunk_range(elements, place_.rank % place_.width, place_.width);
  owned_gradients_ += round_up(part.owned.end - part.owned.begin, device::kSumBlock);
  return part;
}

FlatLayout::FlatLayout(const model::ModelConfig& config, GradientLife life)
    : FlatLayout(config, units_of_stages(config, {{0, config.layers + 2}}), life, {}) {}

FlatLayout::FlatLayout(const model::ModelConfig& config, const StageUnits& units, GradientLife life,
                       const ShardPlace& place, model::TensorSlice tensor)
    : specs_(model::describe_units(config, tensor)), life_(life), place_(place) {
  CARTAN_ASSERT(place.size % place.width == 0);
  const Index head = std::ssize(specs_) - 1;
  const auto is_block = [&](Index number) { return number > 0 && number < head; };
  // Blocks of which different parameters are trained differ in size.
  Index largest_block = 0;
  for (const Index number : units.numbers)
    if (is_block(number))
      largest_block = std::max<Index>(
          largest_block, round_up(specs_[narrow<std::size_t>(number)].trained, device::kSumBlock));
  std::vector<Index> shared;
  std::size_t turn = 0;
  const std::size_t places = life == GradientLife::fused ? 1 : 2;
  for (const Index number : units.numbers) {
    const model::UnitSpec& spec = specs_[narrow<std::size_t>(number)];
    const Index size = round_up(spec.trained, device::kSumBlock);
    const bool shares = life != GradientLife::step && is_block(number);
    Index begin = gradient_elements_;
    if (shares && shared.size() == places) {
      begin = shared[turn++ % places];
    } else {
      if (shares) shared.push_back(begin);
      gradient_elements_ += shares ? largest_block : size;
    }
    FlatUnit unit;
    unit.number = number;
    unit.spec = &spec;
    unit.elements = std::max(spec.trained, spec.elements);
    unit.parameter_begin = parameter_elements_;
    unit.frozen = {spec.trained, unit.elements};
    if (place_.stage >= 3) {
      const LeafRange own =
          comm::chunk_range(unit.elements - spec.trained, place_.rank % place_.width, place_.width);
      unit.frozen = {spec.trained + own.begin, spec.trained + own.end};
    }
    unit.frozen_begin = frozen_elements_;
    frozen_elements_ += round_up(unit.frozen.end - unit.frozen.begin, device::kSumBlock);
    unit.gradient = make_part(spec.name, spec.trained, begin);
    unit.is_copy = number == 0 && units.embedding_is_copy;
    parameter_elements_ += round_up(unit.elements, device::kSumBlock);
    units_.push_back(std::move(unit));
  }
  owned_elements_ = owned_gradients_;
  const bool has_head = !units.numbers.empty() && units.numbers.back() == head;
  if (!config.tied || !has_head || units.embedding_is_copy || specs_.front().trained == 0) return;
  if (life == GradientLife::fused) {
    tied_ = units_.front().gradient;
  } else {
    const Index elements = units_.front().gradient.elements;
    tied_ = make_part("head of the tied embedding", elements, gradient_elements_);
    gradient_elements_ += round_up(elements, device::kSumBlock);
  }
}

Index FlatLayout::largest_unit(bool embedding) const {
  Index largest = 0;
  for (const FlatUnit& unit : units_)
    if ((unit.number == 0) == embedding) largest = std::max(largest, unit.elements);
  return largest;
}

Index FlatLayout::largest_gradient() const {
  Index largest = 0;
  for (const FlatUnit& unit : units_) largest = std::max(largest, unit.gradient.elements);
  return largest;
}

}  // namespace cartan::shard
