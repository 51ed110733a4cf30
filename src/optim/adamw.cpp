#include "cartan/optim/adamw.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cartan/core/narrow.hpp"

namespace cartan::optim {
namespace {

using device::kSumBlock;
using shard::FlatUnit;

Index stage_blocks(const shard::FlatLayout& layout) {
  return layout.units().back().first_block + layout.units().back().blocks -
         layout.units().front().first_block;
}

}  // namespace

AdamW::AdamW(const OptimConfig& config, shard::FlatState& state, comm::Communicator& plane)
    : config_(config), state_(state), plane_(plane), tree_(state.layout().model_blocks()) {
  const LeafRange mine = leaf_range(stage_blocks(state.layout()), plane.rank(), plane.size());
  block_sums_ = state.device().allocate(narrow<std::size_t>(mine.end - mine.begin) * sizeof(double),
                                        device::MemoryKind::workspace, "sums of squares");
}

void AdamW::add_squares(std::size_t index) {
  const shard::FlatLayout& layout = state_.layout();
  const FlatUnit& unit = layout.units()[index];
  const LeafRange mine = leaf_range(stage_blocks(layout), plane_.rank(), plane_.size());
  const Index first = unit.first_block - layout.units().front().first_block;
  const Index begin = std::max(mine.begin, first), end = std::min(mine.end, first + unit.blocks);
  if (begin >= end) return;
  const Index offset = (begin - first) * kSumBlock;
  const Index count = std::min((end - begin) * kSumBlock, unit.spec->elements - offset);
  state_.device().ops().square_sums(
      state_.gradient(unit.gradient_begin + offset, count),
      {block_sums_.as<double>() + (begin - mine.begin), static_cast<std::size_t>(end - begin)},
      state_.device().compute_stream());
}

std::vector<double> AdamW::host_block_sums() const {
  device::Device& device = state_.device();
  std::vector<double> sums(block_sums_.size_bytes() / sizeof(double));
  device.copy_out(sums.data(), block_sums_.data(), block_sums_.size_bytes(), device.compute_stream());
  device.compute_stream().synchronize();
  return sums;
}

double AdamW::norm_of_squares(double scale) {
  const shard::FlatLayout& layout = state_.layout();
  const LeafRange mine = leaf_range(stage_blocks(layout), plane_.rank(), plane_.size());
  const std::vector<double> sums = host_block_sums();
  CanonicalSum<double> sum(layout.model_blocks());
  const Index first = layout.units().front().first_block + mine.begin;
  for (std::size_t i = 0; i < sums.size(); ++i) sum.push_leaf(first + narrow<Index>(i), sums[i]);
  return scale * std::sqrt(canonical_sum(plane_, tree_, sum.nodes(), sum.values()));
}

double AdamW::gradient_norm(double scale) {
  for (std::size_t unit = 0; unit < state_.layout().units().size(); ++unit) add_squares(unit);
  return norm_of_squares(scale);
}

double AdamW::clip_factor(double norm) const {
  return config_.clip > 0 ? std::min(1.0, config_.clip / (norm + 1e-6)) : 1.0;
}

void AdamW::update(Index update, double lr, double gradient_scale) {
  for (std::size_t unit = 0; unit < state_.layout().units().size(); ++unit)
    update_unit(unit, update, lr, gradient_scale);
}

void AdamW::update_unit(std::size_t index, Index update, double lr, double gradient_scale) {
  device::AdamWStep step;
  step.lr = static_cast<float>(lr);
  step.beta1 = static_cast<float>(config_.beta1);
  step.beta2 = static_cast<float>(config_.beta2);
  step.eps = static_cast<float>(config_.eps);
  step.bias_correction1 = static_cast<float>(1.0 - std::pow(config_.beta1, static_cast<double>(update)));
  step.bias_correction2 = static_cast<float>(1.0 - std::pow(config_.beta2, static_cast<double>(update)));
  step.gradient_scale = static_cast<float>(gradient_scale);
  device::Device& device = state_.device();
  const FlatUnit& unit = state_.layout().units()[index];
  const auto& parameters = unit.spec->parameters;
  // Neighbours with the same decay are one range.
  for (std::size_t i = 0; i < parameters.size();) {
    std::size_t next = i;
    Index count = 0;
    while (next < parameters.size() && parameters[next].decayed == parameters[i].decayed)
      count += parameters[next++].elements();
    step.weight_decay = parameters[i].decayed ? static_cast<float>(config_.weight_decay) : 0.0f;
    const Index begin = unit.parameter_begin + parameters[i].offset;
    device.ops().adamw(state_.master(begin, count),
                       state_.gradient(unit.gradient_begin + parameters[i].offset, count),
                       state_.exp_avg(begin, count), state_.exp_avg_sq(begin, count),
                       state_.compute(begin, count), step, device.compute_stream());
    i = next;
  }
}

std::optional<std::string> AdamW::first_nonfinite_block() const {
  const std::vector<double> sums = host_block_sums();
  const auto bad = std::find_if(sums.begin(), sums.end(), [](double sum) { return !std::isfinite(sum); });
  if (bad == sums.end()) return std::nullopt;
  const shard::FlatLayout& layout = state_.layout();
  const Index block = layout.units().front().first_block + (bad - sums.begin());
  std::string names;
  for (const FlatUnit& unit : layout.units()) {
    const Index begin = (block - unit.first_block) * kSumBlock;
    if (block < unit.first_block || block >= unit.first_block + unit.blocks) continue;
    for (const model::ParameterSpec& parameter : unit.spec->parameters)
      if (parameter.offset < begin + kSumBlock && begin < parameter.offset + parameter.elements())
        names += (names.empty() ? "" : " or ") + parameter.name;
  }
  return names;
}

std::optional<std::string> AdamW::first_nonfinite_gradient() const {
  if (state_.layout().gradient_life() == shard::GradientLife::transient) return first_nonfinite_block();
  device::Device& device = state_.device();
  for (const FlatUnit& unit : state_.layout().units()) {
    for (const model::ParameterSpec& parameter : unit.spec->parameters) {
      const device::Vector g = state_.gradient(unit.gradient_begin + parameter.offset, parameter.elements());
      if (!device.ops().all_finite({g.data, g.dtype, 1, g.size, g.size}, device.compute_stream()))
        return parameter.name;
    }
  }
  return std::nullopt;
}

}  // namespace cartan::optim
