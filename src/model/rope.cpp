// Rotary frequencies and the table of cosines and sines.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "cartan/core/bfloat16.hpp"
#include "cartan/core/float16.hpp"
#include "cartan/core/narrow.hpp"
#include "cartan/model/block.hpp"

namespace cartan::model {

std::vector<double> rope_frequencies(const ModelConfig& config) {
  const Index pairs = config.head_dim / 2;
  std::vector<double> frequencies;
  for (Index i = 0; i < pairs; ++i) {
    double frequency =
        std::pow(config.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(config.head_dim));
    const RopeScaling& r = config.rope_scaling;
    if (r.kind == "llama3") {
      const double turns = static_cast<double>(r.original_length) * frequency / (2.0 * std::numbers::pi);
      const double keep =
          std::clamp((turns - r.low_freq_factor) / (r.high_freq_factor - r.low_freq_factor), 0.0, 1.0);
      frequency *= keep + (1.0 - keep) / r.factor;
    }
    frequencies.push_back(frequency);
  }
  return frequencies;
}

namespace {

float rounded(double value, DType dtype) {
  const auto single = static_cast<float>(value);
  if (dtype == DType::bf16) return to_float(to_bfloat16(single));
  return dtype == DType::f16 ? to_float(to_float16(single)) : single;
}

}  // namespace

RopeTable make_rope_table(const ModelConfig& config, Index positions, device::Device& device,
                          DType rounding) {
  const std::vector<double> frequencies = rope_frequencies(config);
  const auto pairs = narrow<Index>(frequencies.size());
  std::vector<float> host(static_cast<std::size_t>(2 * positions * pairs));
  for (Index p = 0; p < positions; ++p) {
    for (Index i = 0; i < pairs; ++i) {
      const double angle = static_cast<double>(p) * frequencies[static_cast<std::size_t>(i)];
      host[static_cast<std::size_t>(p * pairs + i)] = rounded(std::cos(angle), rounding);
      host[static_cast<std::size_t>((positions + p) * pairs + i)] = rounded(std::sin(angle), rounding);
    }
  }
  RopeTable table;
  const std::size_t bytes = host.size() * sizeof(float);
  table.buffer = device.allocate(bytes, device::MemoryKind::workspace, "rotary table");
  device.copy_in(table.buffer.data(), host.data(), bytes, device.compute_stream());
  table.cosines = device::as_matrix(table.buffer.data(), DType::f32, positions, pairs);
  table.sines = device::as_matrix(device::advance(table.buffer.data(), DType::f32, positions * pairs),
                                  DType::f32, positions, pairs);
  return table;
}

}  // namespace cartan::model
