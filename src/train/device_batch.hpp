// The integers of a micro-batch in device memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cartan/core/narrow.hpp"
#include "cartan/data/batch.hpp"
#include "cartan/device/device.hpp"
#include "cartan/model/block.hpp"

namespace cartan::train {

/// Bytes that upload needs for micro-batches of up to `tokens` tokens, of a model with layers that see a
/// window or without.
inline std::size_t batch_bytes(Index tokens, bool has_window) {
  return (has_window ? 5 : 4) * narrow<std::size_t>(tokens) * sizeof(std::int32_t);
}

/// Copies a micro-batch into `memory`; `host` must live until the compute stream has passed this point.
inline model::BatchView upload(const data::Batch& host, void* memory, device::Device& device) {
  const auto tokens = narrow<std::size_t>(host.sequences * host.seq);
  auto* next = static_cast<std::int32_t*>(memory);
  const auto copy = [&](const std::vector<std::int32_t>& values) {
    device.copy_in(next, values.data(), tokens * sizeof(std::int32_t), device.compute_stream());
    const std::span<const std::int32_t> copied(next, tokens);
    next += tokens;
    return copied;
  };
  model::BatchView view;
  view.shape = {host.sequences, host.seq};
  view.tokens = copy(host.tokens);
  view.targets = copy(host.targets);
  view.positions = copy(host.positions);
  view.document_start = copy(host.document_start);
  if (!host.window_start.empty()) view.window_start = copy(host.window_start);
  return view;
}

}  // namespace cartan::train
