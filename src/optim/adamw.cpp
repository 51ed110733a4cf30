#include "cartan/optim/adamw.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cartan/core/narrow.hpp"
#include "optim/offload_windows.hpp"

namespace cartan::optim {
namespace {

using device::kSumBlock;
using shard::FlatUnit;

}  // namespace

AdamW::AdamW(const OptimConfig& config, shard::FlatState& state) : config_(config), state_(state) {
  const shard::FlatLayout& layout = state.layout();
  shard::for_each_part(
      layout, &shard::GradientPart::alone,
      [&](std::size_t unit, const model::ParameterSpec& parameter, Index begin, Index end) {
        if (layout.units()[unit].is_copy || !parameter.stands_alone) return;
        const LeafRange elements{parameter.offset + begin, parameter.offset + end};
        // Neighbouring parameters that count here are one piece.
        if (!pieces_.empty() && pieces_.back().unit == unit && pieces_.back().elements.end == elements.begin)
          pieces_.back().elements.end = elements.end;
        else
          pieces_.push_back({unit, elements});
      });
  Index blocks = 0;
  for (Piece& piece : pieces_) {
    piece.first_block = blocks;
    blocks += ceil_div(piece.elements.end - piece.elements.begin, kSumBlock);
  }
  block_sums_ = state.device().allocate(narrow<std::size_t>(blocks) * sizeof(double),
                                        device::MemoryKind::workspace, "sums of squares");
  squares_ = state_.device().allocate(ExactSum::kWordCount * sizeof(std::int64_t),
                                      device::MemoryKind::workspace, "sum of all squares");
  decision_ = state_.device().allocate(sizeof(device::UpdateDecision), device::MemoryKind::workspace,
                                       "decision on the update");
  if (state.offloads_states() && state.device().prefers_copies())
    windows_ = std::make_unique<OffloadWindows>(state);
}

AdamW::~AdamW() = default;

void AdamW::begin_step() {
  if (windows_) windows_->begin_step();
}

void AdamW::settle() {
  if (windows_) windows_->settle();
}

void AdamW::add_squares(std::size_t unit) {
  for (const Piece& piece : pieces_) {
    if (piece.unit != unit) continue;
    const Index count = piece.elements.end - piece.elements.begin;
    state_.device().ops().square_sums(
        state_.gradient(state_.layout().units()[unit].gradient, piece.elements.begin, count),
        {block_sums_.as<double>() + piece.first_block, narrow<std::size_t>(ceil_div(count, kSumBlock))},
        state_.device().compute_stream());
  }
}

std::vector<double> AdamW::host_block_sums() const {
  device::Device& device = state_.device();
  std::vector<double> sums(block_sums_.size_bytes() / sizeof(double));
  device.copy_out(sums.data(), block_sums_.data(), block_sums_.size_bytes(), device.compute_stream());
  return sums;
}

std::span<std::int64_t> AdamW::sum_squares() {
  const std::span words(squares_.as<std::int64_t>(), ExactSum::kWordCount);
  state_.device().ops().exact_sum({block_sums_.as<double>(), block_sums_.size_bytes() / sizeof(double)},
                                  words, state_.device().compute_stream());
  return words;
}

const device::UpdateDecision* AdamW::decide(double scale, const float* loss_scale) {
  state_.device().ops().decide_update(
      {squares_.as<std::int64_t>(), ExactSum::kWordCount}, {scale, config_.clip}, loss_scale,
      decision_.as<device::UpdateDecision>(), state_.device().compute_stream());
  return decision_.as<device::UpdateDecision>();
}

device::UpdateDecision AdamW::decision() const {
  device::Device& device = state_.device();
  device::UpdateDecision decided;
  device.copy_out(&decided, decision_.data(), sizeof decided, device.compute_stream());
  return decided;
}

void AdamW::update_unit(std::size_t unit, Index update, double lr) {
  this->update(unit, update, lr, 1.0, decision_.as<device::UpdateDecision>());
}

void AdamW::update_unit_now(std::size_t unit, Index update, double lr, double gradient_scale) {
  this->update(unit, update, lr, gradient_scale, nullptr);
}

void AdamW::update(std::size_t index, Index update, double lr, double gradient_scale,
                   const device::UpdateDecision* decision) {
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
  const LeafRange owned = unit.gradient.owned;
  const auto& parameters = unit.spec->parameters;
  // Neighbours with the same decay are one range.
  for (std::size_t i = 0; i < parameters.size();) {
    if (!parameters[i].trained) break;  // and so are all that follow
    std::size_t next = i;
    Index end = parameters[i].offset;
    while (next < parameters.size() && parameters[next].trained &&
           parameters[next].decayed == parameters[i].decayed)
      end += parameters[next++].elements();
    step.weight_decay = parameters[i].decayed ? static_cast<float>(config_.weight_decay) : 0.0f;
    const Index begin = std::clamp(parameters[i].offset, owned.begin, owned.end);
    const Index count = std::clamp(end, owned.begin, owned.end) - begin;
    if (count > 0) {
      const UpdateViews views{state_.master(index, begin, count),
                              state_.gradient(unit.gradient, begin, count),
                              state_.exp_avg(index, begin, count), state_.exp_avg_sq(index, begin, count),
                              state_.compute(index, begin, count)};
      if (windows_)
        state_.set_written(windows_->update(views, step, decision));
      else
        device.ops().adamw(views.master, views.gradient, views.exp_avg, views.exp_avg_sq, views.compute, step,
                           decision, device.compute_stream());
    }
    i = next;
  }
}

std::optional<std::string> AdamW::first_nonfinite_block() const {
  const std::vector<double> sums = host_block_sums();
  for (const Piece& piece : pieces_) {
    const Index blocks = ceil_div(piece.elements.end - piece.elements.begin, kSumBlock);
    for (Index block = 0; block < blocks; ++block) {
      if (std::isfinite(sums[narrow<std::size_t>(piece.first_block + block)])) continue;
      const Index begin = piece.elements.begin + block * kSumBlock;
      const Index end = std::min(begin + kSumBlock, piece.elements.end);
      std::string names;
      for (const model::ParameterSpec& parameter : state_.layout().units()[piece.unit].spec->parameters)
        if (parameter.offset < end && begin < parameter.offset + parameter.elements())
          names += (names.empty() ? "" : " or ") + parameter.name;
      return names;
    }
  }
  return std::nullopt;
}

std::optional<std::string> AdamW::first_nonfinite_gradient() const {
  if (state_.layout().gradient_life() == shard::GradientLife::fused) return first_nonfinite_block();
  return shard::first_nonfinite(state_, [&](std::size_t unit, Index begin, Index count) {
    return state_.gradient(state_.layout().units()[unit].gradient, begin, count);
  });
}

}  // namespace cartan::optim
