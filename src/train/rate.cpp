#include "train/rate.hpp"

#include <algorithm>

#include "cartan/core/clock.hpp"
#include "cartan/core/narrow.hpp"

namespace cartan::train {
namespace {
constexpr Index kSize = 512, kRows = 4 * kSize;
constexpr int kRepeats = 8;
}  // namespace

double measure_matmul_rate(device::Device& device, DType dtype, comm::Communicator& world) {
  const std::size_t bytes = size_of(dtype) * narrow<std::size_t>((2 * kRows + kSize) * kSize);
  const device::Buffer memory = device.allocate(bytes, device::MemoryKind::workspace, "rate measurement");
  device::Stream& stream = device.compute_stream();
  device.ops().fill_zero({memory.data(), dtype, (2 * kRows + kSize) * kSize}, stream);
  const device::Matrix x = device::as_matrix(memory.data(), dtype, kRows, kSize);
  const device::Matrix w =
      device::as_matrix(device::advance(memory.data(), dtype, kRows * kSize), dtype, kSize, kSize);
  const device::Matrix y =
      device::as_matrix(device::advance(memory.data(), dtype, (kRows + kSize) * kSize), dtype, kRows, kSize);
  const device::SequenceShape shape{kRows / kSize, kSize};
  double best = 0;
  world.barrier();
  for (int i = 0; i < kRepeats; ++i) {
    const auto begin = Clock::now();
    device.ops().linear_forward(x, w, {}, y, false, shape, stream);
    stream.synchronize();
    const double seconds = seconds_since(begin);
    best = std::max(best, 2.0 * static_cast<double>(kRows * kSize * kSize) / seconds);
  }
  std::vector<double> rates(static_cast<std::size_t>(world.size()));
  world.all_gather_host(std::as_bytes(std::span(&best, 1)), std::as_writable_bytes(std::span(rates)));
  double sum = 0;
  for (const double rate : rates) sum += rate;
  return sum;
}

}  // namespace cartan::train
