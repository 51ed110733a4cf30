// What the units of a stage compute with.
#pragma once

#include "cartan/device/arena.hpp"
#include "cartan/device/device.hpp"

namespace cartan::model {

struct Workplace {
  device::Device& device;
  device::Arena& arena;
  DType dtype = DType::f32;

  device::Ops& ops() const { return device.ops(); }
  device::Stream& stream() const { return device.compute_stream(); }
  device::ArenaMatrix matrix(Index rows, Index cols) const { return arena.matrix(dtype, rows, cols); }
};

}  // namespace cartan::model
