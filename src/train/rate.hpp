// The machine's matrix-product rate, which MFU is a share of.
#pragma once

#include "cartan/comm/communicator.hpp"
#include "cartan/device/device.hpp"

namespace cartan::train {

/// FLOP/s of fp32 or bf16 products on all ranks together, measured for a moment at start while every rank
/// does the same. Collective.
double measure_matmul_rate(device::Device& device, DType dtype, comm::Communicator& world);

}  // namespace cartan::train
