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

class DeviceBatch {
 public:
  /// Room for micro-batches of up to `tokens` tokens.
  DeviceBatch(device::Device& device, Index tokens)
      : device_(device),
        capacity_(narrow<std::size_t>(tokens)),
        memory_(device.allocate(4 * capacity_ * sizeof(std::int32_t), device::MemoryKind::activations,
                                "tokens of a micro-batch")) {}

  /// Copies a micro-batch in; `host` must live until the compute stream has passed this point. The view is
  /// valid until the next call.
  model::BatchView upload(const data::Batch& host) {
    const auto tokens = narrow<std::size_t>(host.sequences * host.seq);
    CARTAN_ASSERT(tokens <= capacity_);
    std::size_t array = 0;
    const auto copy = [&](const std::vector<std::int32_t>& values) {
      auto* target = memory_.as<std::int32_t>() + array++ * capacity_;
      device_.copy_in(target, values.data(), tokens * sizeof(std::int32_t), device_.compute_stream());
      return std::span<const std::int32_t>(target, tokens);
    };
    model::BatchView view;
    view.shape = {host.sequences, host.seq};
    view.tokens = copy(host.tokens);
    view.targets = copy(host.targets);
    view.positions = copy(host.positions);
    view.document_start = copy(host.document_start);
    return view;
  }

 private:
  device::Device& device_;
  std::size_t capacity_;
  device::Buffer memory_;
};

}  // namespace cartan::train
