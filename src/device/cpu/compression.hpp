// Operations of compressed gradients; the contracts are in cartan/device/ops.hpp.
#pragma once

#include <cstdint>
#include <span>

#include "cartan/device/view.hpp"

namespace cartan::device::cpu {

void orthonormalise_rows(Matrix x);
void take_largest(Vector x, Vector values, std::span<std::uint32_t> indices);
void scatter_add(Vector y, ConstVector values, std::span<const std::uint32_t> indices);

}  // namespace cartan::device::cpu
