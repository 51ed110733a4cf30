#include "cartan/shard/flat_state.hpp"

#include <algorithm>

#include "cartan/core/narrow.hpp"

namespace cartan::shard {
namespace {

using device::MemoryKind;
using device::Vector;

// Initial values are made on the host in pieces of this many elements.
constexpr Index kPiece = Index{1} << 20;

std::size_t bytes_of(DType dtype, Index elements) { return size_of(dtype) * narrow<std::size_t>(elements); }

device::Matrix row(Vector v) { return {v.data, v.dtype, 1, v.size, v.size}; }

Vector part(const device::Buffer& buffer, DType dtype, Index begin, Index count) {
  return {device::advance(buffer.data(), dtype, begin), dtype, count};
}

}  // namespace

FlatState::FlatState(const FlatLayout& layout, const FlatStateOptions& options, device::Device& device,
                     comm::Communicator& plane)
    : layout_(layout), options_(options), device_(device) {
  const Index elements = layout.parameter_elements();
  master_ = device.allocate(bytes_of(DType::f32, elements), MemoryKind::parameters, "master parameters");
  if (options.compute != DType::f32 && layout.gradient_life() == GradientLife::transient) {
    std::array<Index, 2> largest{};
    for (std::size_t i = 0; i < layout.units().size(); ++i) {
      Index& size = largest[i == 0 ? 0 : 1];
      size = std::max(size, layout.units()[i].spec->elements);
    }
    for (std::size_t w = 0; w < windows_.size(); ++w)
      windows_[w].memory = device.allocate(bytes_of(options.compute, largest[w]), MemoryKind::parameters,
                                           "parameters of a unit for computing");
  } else if (options.compute != DType::f32) {
    compute_ = device.allocate(bytes_of(options.compute, elements), MemoryKind::parameters,
                               "parameters for computing");
  }
  if (options.gradient_slots == 0) return;
  moments_ = device.allocate(bytes_of(DType::f32, 2 * elements), MemoryKind::optimizer, "moments");
  for (int slot = 0; slot < options.gradient_slots; ++slot) {
    gradients_.push_back(plane.allocate_exchange(device, bytes_of(DType::f32, layout.gradient_elements()),
                                                 MemoryKind::gradients, "gradients"));
    slots_.push_back(gradients_.back().as<float>());
  }
}

Vector FlatState::master(Index begin, Index count) const { return part(master_, DType::f32, begin, count); }
Vector FlatState::exp_avg(Index begin, Index count) const { return part(moments_, DType::f32, begin, count); }
Vector FlatState::exp_avg_sq(Index begin, Index count) const {
  return part(moments_, DType::f32, layout_.parameter_elements() + begin, count);
}
Vector FlatState::compute(Index begin, Index count) const {
  if (compute_.data() == nullptr) return {nullptr, options_.compute, count};
  return part(compute_, options_.compute, begin, count);
}
Vector FlatState::gradient(Index begin, Index count) const { return {slots_[0] + begin, DType::f32, count}; }

void FlatState::initialise(const model::ModelConfig& config, std::uint64_t seed) {
  device::Stream& stream = device_.compute_stream();
  const Index elements = layout_.parameter_elements();
  device_.ops().fill_zero(master(0, elements), stream);  // the gaps between units too
  if (moments_.data() != nullptr)
    device_.ops().fill_zero(part(moments_, DType::f32, 0, 2 * elements), stream);
  std::vector<float> host;
  for (const FlatUnit& unit : layout_.units()) {
    for (const model::ParameterSpec& parameter : unit.spec->parameters) {
      for (Index first = 0; first < parameter.elements(); first += kPiece) {
        const Index count = std::min(kPiece, parameter.elements() - first);
        host.resize(narrow<std::size_t>(count));
        model::initial_values(config, parameter, seed, first, host);
        device_.copy_in(master(unit.parameter_begin + parameter.offset + first, count).data, host.data(),
                        bytes_of(DType::f32, count), stream);
        stream.synchronize();
      }
    }
  }
  refresh_compute();
}

void FlatState::refresh_compute() {
  if (compute_.data() == nullptr) return;
  const Index elements = layout_.parameter_elements();
  device_.ops().copy(row(master(0, elements)), row(compute(0, elements)), device_.compute_stream());
}

FlatUnits FlatState::units(const FoldPlan* plan, const FoldPlan* embedding_plan) {
  return {*this, plan, embedding_plan};
}

void FlatState::join_tied_gradient() {
  const auto tied = layout_.tied_gradient_begin();
  if (!tied || layout_.gradient_life() == GradientLife::transient) return;
  const FlatUnit& embedding = layout_.units().front();
  device_.ops().add(gradient(embedding.gradient_begin, embedding.spec->elements),
                    gradient(*tied, embedding.spec->elements), device_.compute_stream());
}

model::UnitView FlatUnits::acquire(std::size_t index) {
  const FlatUnit& unit = state_.layout_.units()[index];
  const Index count = unit.spec->elements;
  const Vector master = state_.master(unit.parameter_begin, count);
  Vector parameters = master;
  if (FlatState::Window& window = state_.window(index); window.memory.data() != nullptr) {
    CARTAN_ASSERT(!window.held);
    window.held = true;
    parameters = part(window.memory, state_.options_.compute, 0, count);
    state_.device_.ops().copy(row(master), row(parameters), state_.device_.compute_stream());
  } else if (state_.compute_.data() != nullptr) {
    parameters = state_.compute(unit.parameter_begin, count);
  }
  model::UnitView view{parameters.data, parameters.dtype, gradient(index), {}};
  if (index + 1 < state_.layout_.units().size()) return view;
  const model::ParameterSpec& last = unit.spec->parameters.back();
  if (const auto tied = state_.layout_.tied_gradient_begin())
    view.matrix_gradient = {state_.slots_, *tied, plan_};
  else if (last.name == "lm_head.weight")
    view.matrix_gradient = view.gradient.at(last.offset);
  return view;
}

void FlatUnits::release(std::size_t index) { state_.window(index).held = false; }

device::GradientView FlatUnits::gradient(std::size_t index) {
  return {state_.slots_, state_.layout_.units()[index].gradient_begin, index == 0 ? embedding_plan_ : plan_};
}

}  // namespace cartan::shard
