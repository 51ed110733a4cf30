#include "cartan/shard/flat_state.hpp"

#include <algorithm>

#include "cartan/core/convert.hpp"
#include "cartan/core/narrow.hpp"

namespace cartan::shard {
namespace {

using device::MemoryKind;
using device::Vector;

// Initial values are made on the host in pieces of this many elements.
constexpr Index kPiece = Index{1} << 20;

std::size_t bytes_of(DType dtype, Index elements) { return size_of(dtype) * narrow<std::size_t>(elements); }

device::Matrix row(Vector v) { return {v.data, v.dtype, 1, v.size, v.size}; }

}  // namespace

FlatState::FlatState(const FlatLayout& layout, const FlatStateOptions& options, device::Device& device,
                     comm::Communicator& alone)
    : FlatState(layout, options, device, ShardGroups{&alone, &alone, &device.compute_stream()}) {}

FlatState::FlatState(const FlatLayout& layout, const FlatStateOptions& options, device::Device& device,
                     const ShardGroups& groups)
    : layout_(layout), options_(options), device_(device), groups_(groups) {
  const DType compute = options.compute;
  CARTAN_ASSERT(layout.gradient_life() != GradientLife::fused || layout.frozen_elements() == 0);
  const bool casts_units = layout.gradient_life() == GradientLife::fused && compute != DType::f32;
  const bool gathers_units = layout.place().stage >= 3;
  // What operations reach slowly is brought into windows, as if it were gathered.
  const bool copies_units =
      options.offload_parameters && device.prefers_copies() && layout.place().stage == 0 && !casts_units;
  if (options.offload_parameters && device.prefers_copies())
    offload_stream_ = device.make_stream("offloaded parameters");
  const Index owned = layout.owned_elements();
  const auto exchange = [&](DType dtype, Index elements, MemoryKind kind, const char* label) {
    return groups.shard->allocate_exchange(device, round_up(bytes_of(dtype, elements), sizeof(float)), kind,
                                           label);
  };
  const auto own = [&](DType dtype, Index elements, MemoryKind kind, const char* label, bool offloaded) {
    return offloaded ? device.allocate_offloaded(bytes_of(dtype, elements), label)
                     : device.allocate(bytes_of(dtype, elements), kind, label);
  };
  if (casts_units || gathers_units || copies_units) {
    windows_.resize(narrow<std::size_t>(1 + std::max(1, options.windows)));
    for (std::size_t i = 0; i < windows_.size(); ++i) {
      const Index elements = layout.largest_unit(i == 0);
      windows_[i].memory = gathers_units
                               ? exchange(compute, elements, MemoryKind::gathered, "gathered parameters")
                               : device.allocate(bytes_of(compute, elements), MemoryKind::gathered,
                                                 "parameters of a unit for computing");
    }
    if ((gathers_units || copies_units) && compute != DType::f32)
      shards_ = own(compute, owned, MemoryKind::parameters, "own parameters for computing",
                    options.offload_parameters);
  } else if (layout.place().stage > 0) {
    whole_ = exchange(compute, layout.parameter_elements(), MemoryKind::parameters, "parameters");
  } else {
    whole_ = own(compute, layout.parameter_elements(), MemoryKind::parameters, "parameters",
                 options.offload_parameters);
  }
  if ((gathers_units || copies_units) && layout.frozen_elements() > 0)
    frozen_ = own(compute, layout.frozen_elements(), MemoryKind::parameters, "own frozen parameters",
                  options.offload_parameters);
  if (compute != DType::f32)
    master_ = own(DType::f32, owned, MemoryKind::master, "master parameters", options.offload_states);
  else if (gathers_units || copies_units)
    shards_ = own(compute, owned, MemoryKind::parameters, "own parameters", options.offload_parameters);
  if (options.gradient_slots == 0) return;

  moments_ = own(DType::f32, 2 * owned, MemoryKind::moments, "moments", options.offload_states);
  for (int slot = 0; slot < options.gradient_slots; ++slot) {
    gradients_.push_back(groups.plane->allocate_exchange(
        device, bytes_of(DType::f32, layout.gradient_elements()), MemoryKind::gradients, "gradients"));
    slots_.push_back(gradients_.back().as<float>());
  }
  if (layout.gradient_life() != GradientLife::transient) return;
  for (int slot = 0; slot < options.owned_slots; ++slot)
    owned_gradients_.push_back(device.allocate(bytes_of(DType::f32, layout.owned_gradient_elements()),
                                               MemoryKind::gradients, "own gradients"));
}

Vector FlatState::owned(const device::Buffer& buffer, DType dtype, std::size_t unit, Index begin,
                        Index count) const {
  const GradientPart& part = layout_.units()[unit].gradient;
  CARTAN_ASSERT(begin >= part.owned.begin && begin + count <= part.owned.end);
  return {device::advance(buffer.data(), dtype, part.owned_begin + begin - part.owned.begin), dtype, count};
}

Vector FlatState::master(std::size_t unit, Index begin, Index count) const {
  if (master_.data() != nullptr) return owned(master_, DType::f32, unit, begin, count);
  if (shards_.data() != nullptr) return owned(shards_, DType::f32, unit, begin, count);
  return {device::advance(whole_.data(), DType::f32, layout_.units()[unit].parameter_begin + begin),
          DType::f32, count};
}

Vector FlatState::exp_avg(std::size_t unit, Index begin, Index count) const {
  return owned(moments_, DType::f32, unit, begin, count);
}

Vector FlatState::exp_avg_sq(std::size_t unit, Index begin, Index count) const {
  const Vector first = exp_avg(unit, begin, count);
  return {device::advance(first.data, DType::f32, layout_.owned_elements()), DType::f32, count};
}

Vector FlatState::compute(std::size_t unit, Index begin, Index count) const {
  if (master_.data() == nullptr) return {nullptr, options_.compute, count};
  if (shards_.data() != nullptr) return owned(shards_, options_.compute, unit, begin, count);
  if (whole_.data() == nullptr) return {nullptr, options_.compute, count};
  return whole(unit, begin, count);
}

Vector FlatState::whole(std::size_t unit, Index begin, Index count) const {
  if (whole_.data() == nullptr)
    return begin < layout_.units()[unit].gradient.elements
               ? owned(shards_, options_.compute, unit, begin, count)
               : frozen(unit, begin, count);
  return {device::advance(whole_.data(), options_.compute, layout_.units()[unit].parameter_begin + begin),
          options_.compute, count};
}

Vector FlatState::frozen(std::size_t unit, Index begin, Index count) const {
  const FlatUnit& flat = layout_.units()[unit];
  CARTAN_ASSERT(begin >= flat.frozen.begin && begin + count <= flat.frozen.end);
  if (frozen_.data() == nullptr)
    return {device::advance(whole_.data(), options_.compute, flat.parameter_begin + begin), options_.compute,
            count};
  return {device::advance(frozen_.data(), options_.compute, flat.frozen_begin + begin - flat.frozen.begin),
          options_.compute, count};
}

Vector FlatState::gradient(const GradientPart& part, Index begin, Index count) const {
  if (owned_gradients_.empty()) return {slots_[0] + part.begin + begin, DType::f32, count};
  CARTAN_ASSERT(begin >= part.owned.begin && begin + count <= part.owned.end);
  return {owned_gradients_[0].as<float>() + part.owned_begin + begin - part.owned.begin, DType::f32, count};
}

std::vector<float*> FlatState::owned_stack(const GradientPart& part) const {
  std::vector<float*> stack;
  const Index offset = part.owned_begin + part.alone.begin - part.owned.begin;
  for (const device::Buffer& buffer : owned_gradients_) stack.push_back(buffer.as<float>() + offset);
  return stack;
}

void FlatState::set_busy(const GradientPart& part, device::Event event) {
  for (auto& [begin, busy] : busy_) {
    if (begin != part.begin) continue;
    busy = std::move(event);
    return;
  }
  busy_.emplace_back(part.begin, std::move(event));
}

void FlatState::wait_until_free(const GradientPart& part) {
  for (auto& [begin, busy] : busy_)
    if (begin == part.begin) device_.compute_stream().wait(busy);
}

void FlatState::clear() {
  const auto fill = [&](const device::Buffer& buffer, DType dtype) {
    const auto elements = narrow<Index>(buffer.size_bytes() / size_of(dtype));
    if (elements > 0) device_.ops().fill_zero({buffer.data(), dtype, elements}, device_.compute_stream());
  };
  fill(whole_, options_.compute);  // the gaps between units too
  fill(master_, DType::f32);
  fill(shards_, options_.compute);
  fill(frozen_, options_.compute);
  fill(moments_, DType::f32);
}

void FlatState::initialise(const model::ModelConfig& config, std::uint64_t seed) {
  device::Stream& stream = device_.compute_stream();
  clear();
  std::vector<float> host;
  std::vector<std::byte> converted;
  const auto fill = [&](const model::ParameterSpec& parameter, Index begin, Index end, const auto& place_of) {
    model::for_each_run(parameter, begin, end, [&](Index whole, Index part, Index count) {
      for (Index done = 0; done < count; done += kPiece) {
        const Index now = std::min(kPiece, count - done);
        host.resize(narrow<std::size_t>(now));
        model::initial_values(config, parameter, seed, whole + done, host);
        const Vector to = place_of(parameter.offset + part + done, now);
        converted.resize(bytes_of(to.dtype, now));
        convert_floats(host, to.dtype, converted);
        device_.copy_in(to.data, converted.data(), converted.size(), stream);
      }
    });
  };
  for_each_part(layout_, &GradientPart::owned,
                [&](std::size_t unit, const model::ParameterSpec& parameter, Index begin, Index end) {
                  fill(parameter, begin, end, [&](Index at, Index count) { return master(unit, at, count); });
                });
  for_each_frozen_part(
      layout_, [&](std::size_t unit, const model::ParameterSpec& parameter, Index begin, Index end) {
        fill(parameter, begin, end, [&](Index at, Index count) { return frozen(unit, at, count); });
      });
  refresh_compute();
}

void FlatState::refresh_compute() {
  for (std::size_t u = 0; u < layout_.units().size(); ++u) {
    const LeafRange owned = layout_.units()[u].gradient.owned;
    const Index count = owned.end - owned.begin;
    const Vector target = compute(u, owned.begin, count);
    if (target.data != nullptr && count > 0)
      device_.ops().copy(row(master(u, owned.begin, count)), row(target), device_.compute_stream());
    publish(u);
  }
  forget_gathered();
  device_.compute_stream().synchronize();
}

std::vector<comm::ByteView> FlatState::parts_of(void* base, LeafRange elements) const {
  std::vector<comm::ByteView> parts;
  for (int r = 0; r < groups_.shard->size(); ++r) {
    const LeafRange chunk = comm::chunk_range(elements.end - elements.begin, r, groups_.shard->size());
    parts.emplace_back(
        static_cast<std::byte*>(device::advance(base, options_.compute, elements.begin + chunk.begin)),
        bytes_of(options_.compute, chunk.end - chunk.begin));
  }
  return parts;
}

void FlatState::join_tied_gradient() {
  const auto& tied = layout_.tied_gradient();
  if (!tied || layout_.gradient_life() == GradientLife::fused) return;
  const Index begin = tied->owned.begin, count = tied->owned.end - begin;
  if (count == 0) return;
  device_.ops().add(gradient(layout_.units().front().gradient, begin, count), gradient(*tied, begin, count),
                    device_.compute_stream());
}

void FlatState::publish(std::size_t unit) {
  const FlatUnit& flat = layout_.units()[unit];
  if (layout_.place().stage == 0 || whole_.data() == nullptr || flat.gradient.elements == 0) return;
  groups_.stream->wait(device_.compute_stream().record());
  void* base = device::advance(whole_.data(), options_.compute, flat.parameter_begin);
  published_.push_back(
      groups_.shard->all_gather_parts(parts_of(base, {0, flat.gradient.elements}), *groups_.stream));
}

void FlatState::forget_gathered() {
  for (const device::Event& event : published_) device_.compute_stream().wait(event);
  published_.clear();
  for (Window& window : windows_) {
    CARTAN_ASSERT(window.holders == 0);
    window.unit.reset();
  }
}

device::Event FlatState::bring(const Vector& from, const Vector& to) {
  device::Stream& compute = device_.compute_stream();
  if (from.size > 0 && offload_stream_ && shards_.data() != nullptr) {
    // The window's users of before are done, and so is the update of what is brought.
    offload_stream_->wait(compute.record());
    offload_stream_->wait(written_);
    device_.copy(to.data, from.data, bytes_of(from.dtype, from.size), *offload_stream_);
    return offload_stream_->record();
  }
  if (from.size > 0) device_.ops().copy(row(from), row(to), compute);
  return compute.record();
}

FlatState::Window* FlatState::window_of(std::size_t unit) {
  const auto holds = [&](const Window& window) { return window.unit == unit; };
  const auto found = std::find_if(windows_.begin(), windows_.end(), holds);
  return found == windows_.end() ? nullptr : &*found;
}

FlatState::Window* FlatState::fill_window(std::size_t unit) {
  if (Window* there = window_of(unit)) return there;
  // The embedding has a window of its own; others take the one that was used longest ago.
  Window* window = nullptr;
  if (layout_.units()[unit].number == 0) {
    window = windows_.data();
  } else {
    for (std::size_t i = 1; i < windows_.size(); ++i)
      if (windows_[i].holders == 0 && (window == nullptr || windows_[i].last_use < window->last_use))
        window = &windows_[i];
  }
  if (window == nullptr || window->holders > 0) return nullptr;
  window->unit = unit;
  window->last_use = ++uses_;
  void* base = window->memory.data();
  const FlatUnit& flat = layout_.units()[unit];
  const auto place = [&](LeafRange elements) {
    return Vector{device::advance(base, options_.compute, elements.begin), options_.compute,
                  elements.end - elements.begin};
  };
  const LeafRange own = flat.gradient.owned;
  const Index count = own.end - own.begin;
  const Vector from = shards_.data() != nullptr ? owned(shards_, options_.compute, unit, own.begin, count)
                                                : master(unit, own.begin, count);
  window->ready = bring(from, place(own));
  const bool has_frozen = flat.elements > flat.gradient.elements;
  if (has_frozen) {
    const LeafRange kept = flat.frozen;
    window->ready = bring(frozen(unit, kept.begin, kept.end - kept.begin), place(kept));
  }
  if (layout_.place().stage < 3) return window;
  groups_.stream->wait(window->ready);
  if (flat.gradient.elements > 0)
    window->ready =
        groups_.shard->all_gather_parts(parts_of(base, {0, flat.gradient.elements}), *groups_.stream);
  if (has_frozen)
    window->ready = groups_.shard->all_gather_parts(parts_of(base, {flat.gradient.elements, flat.elements}),
                                                    *groups_.stream);
  return window;
}

std::optional<std::string> first_nonfinite(const FlatState& state, const OwnedView& view) {
  device::Device& device = state.device();
  std::optional<std::string> found;
  for_each_part(state.layout(), &GradientPart::owned,
                [&](std::size_t unit, const model::ParameterSpec& parameter, Index begin, Index end) {
                  if (found) return;
                  const Vector values = view(unit, parameter.offset + begin, end - begin);
                  if (!device.ops().all_finite(row(values), device.compute_stream())) found = parameter.name;
                });
  return found;
}

FlatUnits FlatState::units(std::size_t first, const FoldPlan* plan, const FoldPlan* embedding_plan) {
  return {*this, first, plan, embedding_plan};
}

model::UnitView FlatUnits::acquire(std::size_t index) {
  const std::size_t unit = first_ + index;
  const FlatUnit& flat = state_.layout_.units()[unit];
  const void* parameters = nullptr;
  if (state_.is_on_demand()) {
    FlatState::Window* window = state_.fill_window(unit);
    if (window == nullptr) throw InternalError("no window is free for {}", flat.spec->name);
    state_.device_.compute_stream().wait(window->ready);
    window->last_use = ++state_.uses_;
    ++window->holders;
    parameters = window->memory.data();
  } else {
    parameters = device::advance(state_.whole_.data(), state_.options_.compute, flat.parameter_begin);
  }
  model::UnitView view{parameters, state_.options_.compute, gradient(index), {}};
  const bool is_last = flat.number + 1 == state_.layout_.model_units();
  if (!is_last) return view;
  for (const model::ParameterSpec& parameter : flat.spec->parameters) {
    if (parameter.name != "lm_head.weight") continue;
    if (parameter.trained) view.matrix_gradient = view.gradient.at(parameter.offset);
    return view;
  }
  if (state_.layout_.units()[first_].spec->trained == 0 && state_.layout_.units()[first_].number == 0)
    return view;  // the tied matrix is not trained
  if (const auto& tied = state_.layout_.tied_gradient()) {
    if (plan_ != nullptr) state_.wait_until_free(*tied);
    view.matrix_gradient = {state_.slots_, tied->begin, plan_};
  } else {  // of the embedding's copy, which comes first
    view.matrix_gradient = gradient(0);
  }
  return view;
}

void FlatUnits::prefetch(std::size_t index) {
  if (state_.is_on_demand()) state_.fill_window(first_ + index);
}

void FlatUnits::release(std::size_t index) {
  if (!state_.is_on_demand()) return;
  FlatState::Window* window = state_.window_of(first_ + index);
  CARTAN_ASSERT(window != nullptr && window->holders > 0);
  --window->holders;
}

device::GradientView FlatUnits::gradient(std::size_t index) {
  const FlatUnit& unit = state_.layout_.units()[first_ + index];
  if (plan_ != nullptr) state_.wait_until_free(unit.gradient);
  const bool looks_up = unit.number == 0 && !unit.is_copy;
  return {state_.slots_, unit.gradient.begin, looks_up ? embedding_plan_ : plan_};
}

}  // namespace cartan::shard
