#include "cartan/model/fp8.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "cartan/core/float8.hpp"
#include "cartan/core/narrow.hpp"

namespace cartan::model {
namespace {

constexpr Index kTensors = 3;  // x, w, dy
constexpr std::size_t kInverses = 1, kMaxima = 2, kHistory = 3;
// Beyond it the inverse of a scale would not be a normal number.
constexpr float kMostScale = 0x1p100f;

constexpr float kLargestE4M3 = to_float(Float8E4M3{Float8E4M3::kLargestCode});
constexpr float kLargestE5M2 = to_float(Float8E5M2{Float8E5M2::kLargestCode});

}  // namespace

Fp8Scales::Fp8Scales(Index layers, const Fp8Options& options, device::Device& device)
    : device_(device),
      options_(options),
      layers_(layers),
      tensors_(layers * narrow<Index>(kBlockLinears) * kTensors),
      buffer_(device.allocate(
          narrow<std::size_t>((narrow<Index>(kHistory) + options.history) * tensors_) * sizeof(float),
          device::MemoryKind::workspace, "scales of 8-bit products")),
      scales_(narrow<std::size_t>(2 * tensors_)),
      history_(narrow<std::size_t>(options.history * tensors_)) {
  begin_step();
  update_scales();
}

Fp8Linear Fp8Scales::linear(Index layer, BlockLinear which) const {
  CARTAN_ASSERT(layer >= 0 && layer < layers_);
  const auto scale = [&](Index tensor) -> device::Fp8Scale {
    const Index place =
        (layer * narrow<Index>(kBlockLinears) + static_cast<Index>(which)) * kTensors + tensor;
    const auto at = [&](std::size_t array) {
      return static_cast<float*>(
          device::advance(buffer_.data(), DType::f32, narrow<Index>(array) * tensors_ + place));
    };
    return {at(0), at(kInverses), at(kMaxima)};
  };
  return {scale(0), scale(1), scale(2)};
}

void Fp8Scales::begin_step() {
  void* const maxima = device::advance(buffer_.data(), DType::f32, narrow<Index>(kMaxima) * tensors_);
  device_.ops().fill_zero({maxima, DType::f32, tensors_}, device_.compute_stream());
}

void Fp8Scales::end_step(comm::Communicator& world) {
  std::vector<float> maxima(narrow<std::size_t>(tensors_));
  device_.copy_out(maxima.data(),
                   device::advance(buffer_.data(), DType::f32, narrow<Index>(kMaxima) * tensors_),
                   maxima.size() * sizeof(float), device_.compute_stream());
  // Floats that are not negative have the order of their bits, infinity and NaN last.
  std::vector<std::int64_t> bits;
  bits.reserve(maxima.size());
  for (const float value : maxima) bits.push_back(std::bit_cast<std::int32_t>(value));
  world.max(bits);
  std::copy_backward(history_.begin(), history_.end() - tensors_, history_.end());
  std::transform(bits.begin(), bits.end(), history_.begin(), [](std::int64_t value) {
    const auto largest = std::bit_cast<float>(static_cast<std::int32_t>(value));
    return std::isfinite(largest) ? largest : 0.0f;
  });
  update_scales();
}

void Fp8Scales::update_scales() {
  const auto tensors = narrow<std::size_t>(tensors_);
  for (std::size_t i = 0; i < tensors; ++i) {
    float largest = 0;
    for (std::size_t at = i; at < history_.size(); at += tensors) largest = std::max(largest, history_[at]);
    const float format = i % kTensors == 2 ? kLargestE5M2 : kLargestE4M3;
    const float scale =
        largest > 0 ? std::min(kMostScale, std::ldexp(format / largest, -options_.margin)) : 1.0f;
    scales_[i] = scale;
    scales_[tensors + i] = 1 / scale;
  }
  device::Stream& stream = device_.compute_stream();
  device_.copy_in(buffer_.data(), scales_.data(), scales_.size() * sizeof(float), stream);
  device_.copy_in(history().data, history_.data(), history_.size() * sizeof(float), stream);
}

device::Vector Fp8Scales::history() const {
  return {device::advance(buffer_.data(), DType::f32, narrow<Index>(kHistory) * tensors_), DType::f32,
          options_.history * tensors_};
}

std::vector<Index> Fp8Scales::history_shape() const {
  return {options_.history, layers_, narrow<Index>(kBlockLinears), kTensors};
}

void Fp8Scales::restore(std::span<const float> history) {
  std::fill(history_.begin(), history_.end(), 0.0f);
  std::copy_n(history.begin(), std::min(history.size(), history_.size()), history_.begin());
  update_scales();
}

}  // namespace cartan::model
