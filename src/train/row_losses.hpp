// Sums of row losses, exactly, so that no grouping of the rows matters.
#pragma once

#include <array>
#include <span>

#include "cartan/comm/communicator.hpp"
#include "cartan/data/batch.hpp"
#include "cartan/train/engine.hpp"

namespace cartan::train {

struct RowLosses {
  ExactSum loss;
  Index targets = 0;

  /// losses [T] (0 where a target does not count), targets [T].
  void add(std::span<const float> losses, std::span<const std::int32_t> of) {
    for (const float value : losses) loss.add(static_cast<double>(value));
    targets += data::counted_targets(of);
  }
  LossSum total() const { return {loss.value(), targets}; }
  /// Over all ranks. Collective.
  LossSum total(comm::Communicator& comm) const {
    std::array<ExactSum, 2> sums{loss, {}};
    sums[1].add(static_cast<double>(targets));
    comm::sum_exactly(comm, sums);
    return {sums[0].value(), static_cast<Index>(sums[1].value())};
  }
};

}  // namespace cartan::train
