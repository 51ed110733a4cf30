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

/// Bytes that upload needs for micro-batches of up to `tokens` tokens, which have a start of the window, or
/// numbers of rows, or not.
inline std::size_t batch_bytes(Index tokens, bool has_window, bool has_numbers = false) {
  return (4 + (has_window ? 1 : 0) + (has_numbers ? 1 : 0)) * narrow<std::size_t>(tokens) *
         sizeof(std::int32_t);
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
  if (!host.row_numbers.empty()) view.dropout.numbers = copy(host.row_numbers);
  return view;
}

}  // namespace cartan::train
