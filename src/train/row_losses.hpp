// The loss of a sequence from the losses of its rows.
#pragma once

#include <numeric>
#include <span>

#include "cartan/data/batch.hpp"
#include "cartan/train/engine.hpp"

namespace cartan::train {

/// Sums in double, in the order of the rows. losses [T] (0 where a target does not count), targets [T].
inline LossSum sum_rows(std::span<const float> losses, std::span<const std::int32_t> targets) {
  return {std::accumulate(losses.begin(), losses.end(), 0.0), data::counted_targets(targets)};
}

}  // namespace cartan::train
