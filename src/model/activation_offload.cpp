#include "model/activation_offload.hpp"

#include "cartan/core/error.hpp"
#include "cartan/core/narrow.hpp"

namespace cartan::model {
namespace {

// The statistics of rows are small and stay.
constexpr std::array kMatrices{&BlockActivations::x,   &BlockActivations::qkv,
                               &BlockActivations::qk,  &BlockActivations::attention,
                               &BlockActivations::mid, &BlockActivations::gate_up};
static_assert(kMatrices.size() == std::tuple_size_v<decltype(OffloadedActivations::pieces)>);

std::size_t bytes_of(const device::Matrix& m) {
  return narrow<std::size_t>(m.rows * m.stride) * size_of(m.dtype);
}

}  // namespace

ActivationOffload::ActivationOffload(device::Device& device, device::Arena& host)
    : device_(device),
      host_(host),
      out_(device.make_stream("activations out")),
      in_(device.make_stream("activations in")) {}

void ActivationOffload::send(BlockActivations& saved, OffloadedActivations& to) {
  release();
  // The compute stream has waited for those who had the host's memory before.
  out_->wait(device_.compute_stream().record());
  for (std::size_t i = 0; i < kMatrices.size(); ++i) {
    device::ArenaMatrix& m = saved.*kMatrices[i];
    if (m.rows * m.cols == 0) continue;
    to.pieces[i] = host_.take(bytes_of(m));
    device_.copy(to.pieces[i].data(), m.data, bytes_of(m), *out_);
    leaving_.push_back(std::move(m.piece));
    m.data = nullptr;
  }
  to.is_away = true;
  left_ = out_->record();
}

void ActivationOffload::release() {
  if (leaving_.empty()) return;
  device_.compute_stream().wait(left_);
  leaving_.clear();
}

void ActivationOffload::fetch(OffloadedActivations& from, BlockActivations& saved, device::Arena& arena) {
  if (!from.is_away) return;
  from.is_away = false;
  // The compute stream comes after what went out, and after those who had the arena's memory before.
  in_->wait(device_.compute_stream().record());
  for (std::size_t i = 0; i < kMatrices.size(); ++i) {
    if (!from.pieces[i]) continue;
    device::ArenaMatrix& m = saved.*kMatrices[i];
    m = arena.matrix(m.dtype, m.rows, m.cols);
    device_.copy(m.data, from.pieces[i].data(), bytes_of(m), *in_);
  }
  from.moved = in_->record();
}

void ActivationOffload::arrive(OffloadedActivations& from) {
  CARTAN_ASSERT(!from.is_away);
  device_.compute_stream().wait(from.moved);
  for (device::ArenaPiece& piece : from.pieces) piece.reset();
}

}  // namespace cartan::model
