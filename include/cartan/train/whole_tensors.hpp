// Parameters and gradients as whole logical tensors on the host, put together from the parts of all ranks bit
// by bit. For comparing runs of toy models: every rank gets the whole model.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cartan/comm/communicator.hpp"
#include "cartan/model/config.hpp"
#include "cartan/shard/flat_state.hpp"

namespace cartan::train {

/// Values by the name of their parameter.
using Tensors = std::map<std::string, std::vector<float>>;

/// What this rank has of the master parameters, or of the reduced gradients of the last step times `scale`,
/// in tensors that are zero elsewhere. Tensors of which it has nothing are absent. State on a cpu device.
Tensors master_values(const shard::FlatState& state, shard::HeldRange range = &shard::GradientPart::owned);
Tensors gradient_values(const shard::FlatState& state, double scale,
                        shard::HeldRange range = &shard::GradientPart::owned);

/// The whole trained tensors of `config` from what each rank alone stands for. Collective over `world`, one
/// sum for each parameter.
Tensors gather_tensors(const model::ModelConfig& config, const Tensors& mine, comm::Communicator& world);

/// norm(a - b), norm(b), and the largest |a - b|; NaN where a value is.
struct Distance {
  double difference = 0, norm = 0, largest = 0;
};
/// Of tensors of the same size.
Distance distance(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace cartan::train
