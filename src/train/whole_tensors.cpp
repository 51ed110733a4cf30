#include "cartan/train/whole_tensors.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>

#include "cartan/core/error.hpp"
#include "cartan/core/narrow.hpp"

namespace cartan::train {
namespace {

Tensors held_values(const shard::FlatState& state, const shard::OwnedView& view, double scale,
                    shard::HeldRange range) {
  device::Device& device = state.device();
  Tensors values;
  std::vector<float> held;
  shard::for_each_part(
      state.layout(), range, [&](std::size_t unit, const model::ParameterSpec& p, Index begin, Index end) {
        if (!p.stands_alone || state.layout().units()[unit].is_copy) return;
        std::vector<float>& tensor = values[p.name];
        tensor.resize(narrow<std::size_t>(
            std::accumulate(p.shape.begin(), p.shape.end(), Index{1}, std::multiplies<>())));
        held.resize(narrow<std::size_t>(end - begin));
        device.copy_out(held.data(), view(unit, p.offset + begin, end - begin).data,
                        held.size() * sizeof(float), device.compute_stream());
        model::for_each_run(p, begin, end, [&](Index whole, Index part, Index count) {
          const float* from = held.data() + (part - begin);
          for (Index i = 0; i < count; ++i)
            tensor[narrow<std::size_t>(whole + i)] = static_cast<float>(static_cast<double>(from[i]) * scale);
        });
      });
  return values;
}

}  // namespace

Tensors master_values(const shard::FlatState& state, shard::HeldRange range) {
  return held_values(
      state, [&](std::size_t unit, Index begin, Index count) { return state.master(unit, begin, count); },
      1.0, range);
}

Tensors gradient_values(const shard::FlatState& state, double scale, shard::HeldRange range) {
  return held_values(
      state,
      [&](std::size_t unit, Index begin, Index count) {
        return state.gradient(state.layout().units()[unit].gradient, begin, count);
      },
      scale, range);
}

Tensors gather_tensors(const model::ModelConfig& config, const Tensors& mine, comm::Communicator& world) {
  Tensors all;
  for (const model::UnitSpec& unit : model::describe_units(config))
    for (const model::ParameterSpec& p : unit.parameters) {
      if (!p.trained) continue;
      // Of each element one rank has the bits and all others have zeros: the sum is the element.
      std::vector<std::int64_t> bits(narrow<std::size_t>(p.elements()), 0);
      if (const auto found = mine.find(p.name); found != mine.end())
        for (std::size_t i = 0; i < bits.size(); ++i)
          bits[i] = std::bit_cast<std::uint32_t>(found->second[i]);
      world.sum(bits);
      std::vector<float>& tensor = all[p.name];
      tensor.reserve(bits.size());
      for (const std::int64_t value : bits)
        tensor.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(value)));
    }
  return all;
}

Distance distance(const std::vector<float>& a, const std::vector<float>& b) {
  CARTAN_ASSERT(a.size() == b.size());
  Distance d;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    d.difference += difference * difference;
    d.norm += static_cast<double>(b[i]) * static_cast<double>(b[i]);
    // Not std::max, which would pass over NaN.
    if (!(std::abs(difference) <= d.largest)) d.largest = std::abs(difference);
  }
  d.difference = std::sqrt(d.difference);
  d.norm = std::sqrt(d.norm);
  return d;
}

}  // namespace cartan::train
