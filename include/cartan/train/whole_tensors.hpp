// Parameters and gradients as whole logical tensors on the host, put together from the parts of all ranks bit
// by bit. For comparing runs of toy models: every rank gets the whole model.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "cartan/comm/communicator.hpp"
#include "cartan/model/config.hpp"
#include "cartan/shard/flat_state.hpp"

namespace cartan::train {

/// Values by the name of their parameter.
using Tensors = std::map<std::string, std::vector<float>>;

/// Which elements of a unit: &GradientPart::owned, all that this rank owns, or &GradientPart::alone, what it
/// alone stands for.
using HeldRange = LeafRange shard::GradientPart::*;

/// Visits the parameters of which a part lies in `range` of a unit: visit(unit, parameter, begin, end) with
/// elements of the parameter's part.
template <class Visit>
void for_each_part(const shard::FlatLayout& layout, HeldRange range, const Visit& visit) {
  for (std::size_t u = 0; u < layout.units().size(); ++u) {
    const shard::FlatUnit& unit = layout.units()[u];
    const LeafRange held = unit.gradient.*range;
    for (const model::ParameterSpec& parameter : unit.spec->parameters) {
      const Index begin = std::max(held.begin - parameter.offset, Index{0});
      const Index end = std::min(held.end - parameter.offset, parameter.elements());
      if (begin < end) visit(u, parameter, begin, end);
    }
  }
}

/// What this rank has of the master parameters, or of the reduced gradients of the last step times `scale`,
/// in tensors that are zero elsewhere. Tensors of which it has nothing are absent. State on a cpu device.
Tensors master_values(const shard::FlatState& state, HeldRange range = &shard::GradientPart::owned);
Tensors gradient_values(const shard::FlatState& state, double scale,
                        HeldRange range = &shard::GradientPart::owned);

/// The whole tensors of `config` from what each rank alone stands for. Collective over `world`, one sum for
/// each parameter.
Tensors gather_tensors(const model::ModelConfig& config, const Tensors& mine, comm::Communicator& world);

/// norm(a - b), norm(b), and the largest |a - b|; NaN where a value is.
struct Distance {
  double difference = 0, norm = 0, largest = 0;
};
/// Of tensors of the same size.
Distance distance(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace cartan::train
