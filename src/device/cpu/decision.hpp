// What decides on an update: norm, clipping, loss scale. The contracts are in cartan/device/ops.hpp.
#pragma once

#include "cartan/device/ops.hpp"

namespace cartan::device::cpu {

UpdateDecision decide_update(std::span<const std::int64_t> words, const UpdateRule& rule,
                             const float* loss_scale);
void update_loss_scale(bool overflow, const LossScaleRule& rule, LossScaleState& state);

}  // namespace cartan::device::cpu
