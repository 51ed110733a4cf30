// The choice of the next token; the contracts are in cartan/device/ops.hpp.
#pragma once

#include <cstdint>
#include <span>

#include "cartan/device/sampling.hpp"
#include "cartan/device/view.hpp"
#include "device/cpu/context.hpp"

namespace cartan::device::cpu {

void penalise_repeats(Vector logits, std::span<const std::int32_t> ids, float penalty);
void sample(const Context& context, ConstMatrix logits, std::span<const double> uniforms,
            const SamplingRule& rule, std::span<std::int32_t> tokens);

}  // namespace cartan::device::cpu
