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

/// A forward-only stage with device memory for the integers of a micro-batch.
class Forward {
 public:
  Forward(const LoadedModel& model, device::SequenceShape shape, device::Device& device)
      : device_(device),
        units_(model.state->units()),
        stage_(model.config, {0, model.config.layers + 2}, {model.state->compute_dtype(), shape, false, 0, 0},
               device),
        device_batch_(device, shape.tokens()) {}

  /// Losses of the rows.
  std::vector<float> losses(const data::Batch& host) {
    const model::BatchView batch = run(host);
    stage_.loss(batch, units_);
    std::vector<float> rows(static_cast<std::size_t>(batch.shape.tokens()));
    device_.copy_out(rows.data(), stage_.row_losses().data, rows.size() * sizeof(float),
                     device_.compute_stream());
    device_.compute_stream().synchronize();
    return rows;
  }

  /// Logits of the rows of the last call of losses(), which must have been one sequence.
  std::vector<float> logits(Index rows, Index vocab) {
    std::vector<float> all(static_cast<std::size_t>(rows * vocab));
    const device::Buffer memory =
        device_.allocate(all.size() * sizeof(float), device::MemoryKind::activations, "logits");
    stage_.logits(units_, 0, device::as_matrix(memory.data(), DType::f32, rows, vocab));
    device_.copy_out(all.data(), memory.data(), all.size() * sizeof(float), device_.compute_stream());
    device_.compute_stream().synchronize();
    return all;
  }

 private:
  model::BatchView run(const data::Batch& host) {
    const model::BatchView batch = device_batch_.upload(host);
    stage_.forward(batch, units_);
    return batch;
  }

  device::Device& device_;
  shard::FlatUnits units_;
  model::Stage stage_;
  DeviceBatch device_batch_;
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
  ExactSum nothing;
  return sum.total(comm, nothing);
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
