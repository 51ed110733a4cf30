#include "train/rate.hpp"

#include <algorithm>

#include "cartan/core/clock.hpp"
#include "cartan/core/narrow.hpp"

namespace cartan::train {
namespace {
constexpr int kRepeats = 8;
}  // namespace

double measure_matmul_rate(device::Device& device, DType dtype, comm::Communicator& world) {
  const Index side = device.large_product(), rows = 4 * side;
  const std::size_t bytes = size_of(dtype) * narrow<std::size_t>((2 * rows + side) * side);
  const device::Buffer memory = device.allocate(bytes, device::MemoryKind::workspace, "rate measurement");
  device::Stream& stream = device.compute_stream();
  device.ops().fill_zero({memory.data(), dtype, (2 * rows + side) * side}, stream);
  const device::Matrix x = device::as_matrix(memory.data(), dtype, rows, side);
  const device::Matrix w =
      device::as_matrix(device::advance(memory.data(), dtype, rows * side), dtype, side, side);
  const device::Matrix y =
      device::as_matrix(device::advance(memory.data(), dtype, (rows + side) * side), dtype, rows, side);
  const device::SequenceShape shape{rows / side, side};
  double best = 0;
  world.barrier();
  for (int i = 0; i < kRepeats; ++i) {
    const auto begin = Clock::now();
    device.ops().linear_forward(x, w, {}, y, false, shape, stream);
    stream.synchronize();
    const double seconds = seconds_since(begin);
    best = std::max(best, 2.0 * static_cast<double>(rows * side * side) / seconds);
  }
  std::vector<double> rates(static_cast<std::size_t>(world.size()));
  world.all_gather_host(std::as_bytes(std::span(&best, 1)), std::as_writable_bytes(std::span(rates)));
  double sum = 0;
  for (const double rate : rates) sum += rate;
  return sum;
}

}  // namespace cartan::train
