// What decides on an update: norm and clipping. The contract is in cartan/device/ops.hpp.
#pragma once

#include "cartan/device/ops.hpp"

namespace cartan::device::cpu {

UpdateDecision decide_update(std::span<const std::int64_t> words, const UpdateRule& rule,
                             const float* loss_scale);

}  // namespace cartan::device::cpu
