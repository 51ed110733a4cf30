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

namespace {

/// theta^(-2i / rotary_dim), of which every scaling makes something.
double plain_frequency(double theta, Index pair, Index rotary_dim) {
  return std::pow(theta, -2.0 * static_cast<double>(pair) / static_cast<double>(rotary_dim));
}

/// The base that lets the slowest pair turn at `length` positions as far as it did at the original length.
double dynamic_theta(const ModelConfig& c, Index length) {
  const RopeScaling& r = c.rope_scaling;
  const auto dim = static_cast<double>(c.turning_channels()),
             original = static_cast<double>(r.original_length);
  const double ratio = std::max(static_cast<double>(length), original) / original;
  return c.rope_theta * std::pow(r.factor * ratio - (r.factor - 1), dim / (dim - 2));
}

double llama3_frequency(const RopeScaling& r, double frequency) {
  const double turns = static_cast<double>(r.original_length) * frequency / (2.0 * std::numbers::pi);
  const double keep =
      std::clamp((turns - r.low_freq_factor) / (r.high_freq_factor - r.low_freq_factor), 0.0, 1.0);
  return frequency * (keep + (1.0 - keep) / r.factor);
}

/// Pairs below `first` keep their frequency, those from `last` on are stretched in full.
struct Ramp {
  double first, last;
  double stretched(Index pair) const {
    return std::clamp((static_cast<double>(pair) - first) / (last - first), 0.0, 1.0);
  }
};

Ramp yarn_ramp(const ModelConfig& c) {
  const RopeScaling& r = c.rope_scaling;
  const auto dim = static_cast<double>(c.turning_channels());
  const auto pair_that_turns = [&](double turns) {
    return dim * std::log(static_cast<double>(r.original_length) / (turns * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(c.rope_theta));
  };
  const double first = std::max(std::floor(pair_that_turns(r.beta_fast)), 0.0);
  const double last = std::min(std::ceil(pair_that_turns(r.beta_slow)), dim - 1);
  return {first, last == first ? last + 1e-3 : last};
}

const std::vector<double>& longrope_factors(const RopeScaling& r, Index length) {
  return length > r.original_length ? r.long_factors : r.short_factors;
}

}  // namespace

std::vector<double> rope_frequencies(const ModelConfig& c, Index length) {
  const RopeScaling& r = c.rope_scaling;
  const double theta = r.kind == "dynamic" ? dynamic_theta(c, length) : c.rope_theta;
  std::vector<double> frequencies;
  for (Index i = 0; i < c.turning_channels() / 2; ++i) {
    double frequency = plain_frequency(theta, i, c.turning_channels());
    if (r.kind == "linear") frequency /= r.factor;
    if (r.kind == "llama3") frequency = llama3_frequency(r, frequency);
    if (r.kind == "yarn") {
      const double stretched = yarn_ramp(c).stretched(i);
      frequency *= stretched / r.factor + (1.0 - stretched);
    }
    if (r.kind == "longrope") frequency /= longrope_factors(r, length)[static_cast<std::size_t>(i)];
    frequencies.push_back(frequency);
  }
  return frequencies;
}

double rope_magnitude(const ModelConfig& c) {
  const RopeScaling& r = c.rope_scaling;
  if (r.kind != "yarn" && r.kind != "longrope") return 1;
  if (r.attention_factor > 0) return r.attention_factor;
  if (r.kind == "yarn") return r.factor > 1 ? 0.1 * std::log(r.factor) + 1.0 : 1.0;
  const auto original = static_cast<double>(r.original_length);
  const double factor = static_cast<double>(c.max_length) / original;
  return factor > 1 ? std::sqrt(1.0 + std::log(factor) / std::log(original)) : 1.0;
}

bool rope_magnitude_follows_length(const ModelConfig& c) {
  return c.rope_scaling.kind == "longrope" && c.rope_scaling.attention_factor == 0;
}

bool rope_depends_on_length(const ModelConfig& c) {
  return c.rope_scaling.kind == "dynamic" || c.rope_scaling.kind == "longrope";
}

namespace {

float rounded(double value, DType dtype) {
  const auto single = static_cast<float>(value);
  if (dtype == DType::bf16) return to_float(to_bfloat16(single));
  return dtype == DType::f16 ? to_float(to_float16(single)) : single;
}

}  // namespace

RopeTable make_rope_table(const ModelConfig& config, Index positions, device::Device& device, DType rounding,
                          Index length) {
  const std::vector<double> frequencies = rope_frequencies(config, length > 0 ? length : positions);
  const double magnitude = rope_magnitude(config);
  const auto pairs = narrow<Index>(frequencies.size());
  std::vector<float> host(static_cast<std::size_t>(2 * positions * pairs));
  for (Index p = 0; p < positions; ++p) {
    for (Index i = 0; i < pairs; ++i) {
      const double angle = static_cast<double>(p) * frequencies[static_cast<std::size_t>(i)];
      host[static_cast<std::size_t>(p * pairs + i)] = rounded(magnitude * std::cos(angle), rounding);
      host[static_cast<std::size_t>((positions + p) * pairs + i)] =
          rounded(magnitude * std::sin(angle), rounding);
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
