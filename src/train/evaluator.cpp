#include "cartan/train/evaluator.hpp"

#include <algorithm>
#include <numeric>

#include "cartan/core/narrow.hpp"
#include "train/device_batch.hpp"
#include "train/row_losses.hpp"

namespace cartan::train {
namespace {

// Sequences that are evaluated together.
constexpr Index kMicro = 4;

/// A forward-only stage with device memory for a micro-batch.
class Forward {
 public:
  Forward(const LoadedModel& model, device::SequenceShape shape, device::Device& device)
      : device_(device), units_(model.state->units()), config_(model.config), shape_(shape) {
    options_.compute = model.state->compute_dtype();
    options_.micro = shape;
    options_.rope_positions = shape.length;
    options_.training = false;
    // A rehearsal tells how much memory a micro-batch needs.
    device::Arena measuring;
    const auto sim = device::make_sim_device(device::DeviceKind::cpu, {1});
    model::Stage rehearsed = make_stage(*sim, measuring);
    model::Flight flight;
    const std::vector<std::int32_t> zeros(static_cast<std::size_t>(shape.tokens()));
    flight.batch = {shape, zeros, zeros, zeros, zeros, {}, zeros, {}};
    const device::ArenaPiece integers = measuring.take(batch_bytes(shape.tokens(), config_.window > 0));
    rehearsed.forward(flight, units_, false);
    rehearsed.loss(flight, units_);
    arena_ = std::make_unique<device::Arena>(
        device.allocate(measuring.peak(), device::MemoryKind::activations, "activations of evaluation"));
    stage_ = std::make_unique<model::Stage>(make_stage(device, *arena_));
  }

  /// Losses of the rows. Sets the batch's window.
  std::vector<float> losses(data::Batch& host) {
    data::set_window(host, config_.window);
    flight_ = {};
    integers_.reset();
    integers_ = arena_->take(batch_bytes(host.sequences * host.seq, config_.window > 0));
    flight_.batch = upload(host, integers_.data(), device_);
    stage_->forward(flight_, units_, false);
    stage_->loss(flight_, units_);
    std::vector<float> rows(static_cast<std::size_t>(flight_.batch.shape.tokens()));
    device_.copy_out(rows.data(), flight_.row_loss.data, rows.size() * sizeof(float),
                     device_.compute_stream());
    return rows;
  }

  /// Logits of the rows of the last call of losses(), which must have been one sequence.
  std::vector<float> logits(Index rows, Index vocab) {
    std::vector<float> all(static_cast<std::size_t>(rows * vocab));
    const device::Buffer memory =
        device_.allocate(all.size() * sizeof(float), device::MemoryKind::activations, "logits");
    stage_->logits(flight_, units_, 0, device::as_matrix(memory.data(), DType::f32, rows, vocab));
    device_.copy_out(all.data(), memory.data(), all.size() * sizeof(float), device_.compute_stream());
    return all;
  }

 private:
  model::Stage make_stage(device::Device& device, device::Arena& arena) const {
    return {config_, {0, config_.layers + 2}, options_, {}, {}, device, arena};
  }

  device::Device& device_;
  shard::FlatUnits units_;
  model::ModelConfig config_;
  device::SequenceShape shape_;
  model::StageOptions options_;
  std::unique_ptr<device::Arena> arena_;
  std::unique_ptr<model::Stage> stage_;
  device::ArenaPiece integers_;
  model::Flight flight_;
};

}  // namespace

LossSum evaluate_samples(const LoadedModel& model, const data::Sampler& sampler, Index samples,
                         device::Device& device, comm::Communicator& comm) {
  const LeafRange mine = leaf_range(samples, comm.rank(), comm.size());
  const Index seq = sampler.options().seq;
  RowLosses sum;
  if (mine.begin < mine.end) {
    Forward forward(model, {std::min(kMicro, mine.end - mine.begin), seq}, device);
    data::Batch batch;
    for (Index first = mine.begin; first < mine.end; first += kMicro) {
      std::vector<Index> numbers(static_cast<std::size_t>(std::min(kMicro, mine.end - first)));
      std::iota(numbers.begin(), numbers.end(), first);
      sampler.fill(numbers, batch);
      const std::vector<float> rows = forward.losses(batch);
      sum.add(std::span(rows).first(numbers.size() * static_cast<std::size_t>(seq)), batch.targets);
    }
  }
  return sum.total(comm);
}

SequenceResult evaluate_ids(const LoadedModel& model, std::span<const std::int32_t> ids, bool want_logits,
                            device::Device& device) {
  SequenceResult result;
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= model.config.vocab)
      throw DataError("token {} at position {} is outside the model's vocabulary of {}", ids[i], i,
                      model.config.vocab);
  if (ids.empty()) return result;
  data::Batch batch;
  batch.sequences = 1;
  batch.seq = narrow<Index>(ids.size());
  batch.tokens.assign(ids.begin(), ids.end());
  batch.targets.assign(ids.begin() + 1, ids.end());
  batch.targets.push_back(data::kIgnoredTarget);
  batch.positions.resize(ids.size());
  std::iota(batch.positions.begin(), batch.positions.end(), 0);
  batch.document_start.assign(ids.size(), 0);
  Forward forward(model, {1, batch.seq}, device);
  RowLosses sum;
  sum.add(forward.losses(batch), batch.targets);
  result.loss = sum.total();
  if (want_logits) result.logits = forward.logits(batch.seq, model.config.vocab);
  return result;
}

}  // namespace cartan::train
