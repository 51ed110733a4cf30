#include "optim/offload_windows.hpp"

#include <algorithm>

#include "cartan/core/narrow.hpp"

namespace cartan::optim {
namespace {

using device::Vector;

std::size_t bytes_of(const Vector& v) { return narrow<std::size_t>(v.size) * size_of(v.dtype); }

}  // namespace

OffloadWindows::OffloadWindows(shard::FlatState& state)
    : device_(state.device()),
      has_states_(state.offloads_states()),
      has_parameters_(state.offloads_parameters()),
      has_master_(state.compute_dtype() != DType::f32),
      in_(device_.make_stream("states in")),
      out_(device_.make_stream("states out")) {
  constexpr Index kPlaces = 4;  // master, two moments, and the copy for computing
  for (Window& window : windows_)
    window.memory = device_.allocate(narrow<std::size_t>(kPlaces * kElements) * sizeof(float),
                                     device::MemoryKind::workspace, "windows of offloaded states");
}

void OffloadWindows::begin_step() { in_->wait(out_->record()); }

device::Event OffloadWindows::update(const UpdateViews& views, const device::AdamWStep& step,
                                     const device::UpdateDecision* decision) {
  const auto slice = [](const Vector& v, Index begin, Index count) {
    return v.data == nullptr ? v : v.slice(begin, count);
  };
  for (Index begin = 0; begin < views.master.size; begin += kElements) {
    const Index count = std::min(kElements, views.master.size - begin);
    update_piece({views.master.slice(begin, count), views.gradient.slice(begin, count),
                  views.exp_avg.slice(begin, count), views.exp_avg_sq.slice(begin, count),
                  slice(views.compute, begin, count)},
                 step, decision);
  }
  return out_->record();
}

UpdateViews OffloadWindows::place(const UpdateViews& piece, const Window& window) const {
  UpdateViews placed = piece;
  const auto at = [&](Vector& v, Index number) { v.data = window.memory.as<float>() + number * kElements; };
  if (has_master_ ? has_states_ : has_parameters_) at(placed.master, 0);
  if (has_states_) {
    at(placed.exp_avg, 1);
    at(placed.exp_avg_sq, 2);
  }
  if (has_parameters_ && placed.compute.data != nullptr) at(placed.compute, 3);
  return placed;
}

void OffloadWindows::update_piece(const UpdateViews& piece, const device::AdamWStep& step,
                                  const device::UpdateDecision* decision) {
  Window& window = windows_[next_++ % windows_.size()];
  const UpdateViews placed = place(piece, window);
  device::Stream& compute = device_.compute_stream();
  const auto copy = [&](const Vector& to, const Vector& from, device::Stream& stream) {
    if (to.data != from.data) device_.copy(to.data, from.data, bytes_of(to), stream);
  };
  in_->wait(window.free);
  copy(placed.master, piece.master, *in_);
  copy(placed.exp_avg, piece.exp_avg, *in_);
  copy(placed.exp_avg_sq, piece.exp_avg_sq, *in_);
  compute.wait(in_->record());
  device_.ops().adamw(placed.master, placed.gradient, placed.exp_avg, placed.exp_avg_sq, placed.compute, step,
                      decision, compute);
  out_->wait(compute.record());
  copy(piece.master, placed.master, *out_);
  copy(piece.exp_avg, placed.exp_avg, *out_);
  copy(piece.exp_avg_sq, placed.exp_avg_sq, *out_);
  copy(piece.compute, placed.compute, *out_);
  window.free = out_->record();
}

void OffloadWindows::settle() { out_->synchronize(); }

}  // namespace cartan::optim
