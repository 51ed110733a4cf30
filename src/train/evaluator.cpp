#include "cartan/train/evaluator.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>

#include "cartan/core/narrow.hpp"
#include "train/forward.hpp"
#include "train/row_losses.hpp"

namespace cartan::train {
namespace {

/// Sequences whose lengths round up to the same are computed together; of these an eighth at most is added.
Index rounded_length(const TargetSequence& sequence, const model::ModelConfig& config) {
  const Index length = std::ssize(sequence.ids);
  // Where rotary frequencies go by the length, a longer sequence would be another one.
  if (model::rope_depends_on_length(config)) return length;
  const auto eighth = narrow<Index>(std::bit_floor(narrow<std::uint64_t>(length)) / 8);
  return round_up(length, std::max<Index>(16, eighth));
}

std::vector<float> row_losses(const model::Flight& flight, device::Device& device) {
  std::vector<float> rows(narrow<std::size_t>(flight.batch.shape.tokens()));
  device.copy_out(rows.data(), flight.row_loss.data, rows.size() * sizeof(float), device.compute_stream());
  return rows;
}

/// Appends a sequence and rows without target up to the batch's length.
void append(const TargetSequence& sequence, data::Batch& batch) {
  const auto more = narrow<std::size_t>(batch.seq) - sequence.ids.size();
  batch.tokens.insert(batch.tokens.end(), sequence.ids.begin(), sequence.ids.end());
  batch.tokens.insert(batch.tokens.end(), more, 0);
  batch.targets.insert(batch.targets.end(), sequence.targets.begin(), sequence.targets.end());
  batch.targets.insert(batch.targets.end(), more, data::kIgnoredTarget);
  for (Index t = 0; t < batch.seq; ++t) batch.positions.push_back(narrow<std::int32_t>(t));
  batch.document_start.insert(batch.document_start.end(), narrow<std::size_t>(batch.seq), 0);
  ++batch.sequences;
}

/// The logits of a cut sequence go to rank 0, which puts them together.
class LogitsGatherer {
 public:
  LogitsGatherer(const model::ModelConfig& config, Index rows, Index padded_length,
                 const EvaluationPlace& place)
      : config_(config), rows_(rows), padded_(padded_length), place_(place) {
    if (place.mesh.world().rank() == 0) all_.resize(narrow<std::size_t>(rows * config.vocab));
  }

  /// On ranks with a head: what this one has of the flight's logits.
  void take(model::Stage& stage, const model::Flight& flight, model::UnitSource& units) {
    device::Device& device = place_.device;
    const Index rows = own_rows(), vocab = part(place_.mesh.coordinate().tp).vocab;
    own_.resize(narrow<std::size_t>(rows * vocab));
    const std::size_t bytes = own_.size() * sizeof(float);
    const device::Buffer memory = device.allocate(bytes, device::MemoryKind::activations, "logits");
    stage.logits(flight, units, 0, device::as_matrix(memory.data(), DType::f32, rows, vocab));
    device.copy_out(own_.data(), memory.data(), bytes, device.compute_stream());
  }

  /// [rows, V] on rank 0. Collective over the mesh.
  std::vector<float> finish() {
    const comm::MeshShape& shape = place_.mesh.shape();
    comm::Communicator& world = place_.mesh.world();
    for (int cp = 0; cp < shape.context(); ++cp)
      for (int tp = 0; tp < shape.columns(); ++tp) {
        const int holder = comm::rank_of(shape, {shape.pp - 1, 0, cp, tp});
        if (world.rank() == holder && holder != 0) world.send_host(std::as_bytes(std::span(own_)), 0);
        if (world.rank() != 0) continue;
        if (holder != 0) {
          own_.resize(narrow<std::size_t>(own_rows() * part(tp).vocab));
          world.receive_host(std::as_writable_bytes(std::span(own_)), holder);
        }
        put(cp, tp);
      }
    return std::move(all_);
  }

 private:
  Index own_rows() const { return padded_ / place_.mesh.shape().context(); }
  model::TensorSlice slice(int tp) const { return {tp, place_.mesh.shape().columns()}; }
  model::ModelConfig part(int tp) const { return model::part_of(config_, slice(tp)); }

  /// Puts own_, which is that of a place, where it belongs.
  void put(int cp, int tp) {
    const int n = place_.mesh.shape().context();
    const Index vocab = part(tp).vocab, first = model::first_vocabulary_row(config_, slice(tp));
    const Index chunk = n > 1 ? padded_ / (2 * n) : padded_;
    for (Index row = 0; row < own_rows(); ++row) {
      // As rows_of_rank() takes them.
      const Index number = row < chunk ? cp : 2 * n - 1 - cp;
      const Index t = n > 1 ? number * chunk + row % chunk : row;
      if (t < rows_)
        std::copy_n(own_.begin() + narrow<std::ptrdiff_t>(row * vocab), vocab,
                    all_.begin() + narrow<std::ptrdiff_t>(t * config_.vocab + first));
    }
  }

  const model::ModelConfig& config_;
  Index rows_, padded_;
  EvaluationPlace place_;
  std::vector<float> own_, all_;
};

}  // namespace

TargetSequence TargetSequence::of(std::span<const std::int32_t> ids, Index first) {
  TargetSequence sequence;
  sequence.ids.assign(ids.begin(), ids.end());
  for (Index t = 1; t <= std::ssize(ids); ++t)
    sequence.targets.push_back(t < std::ssize(ids) && t >= first ? ids[narrow<std::size_t>(t)]
                                                                 : data::kIgnoredTarget);
  return sequence;
}

void check_ids(std::span<const std::int32_t> ids, Index vocab) {
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= vocab)
      throw DataError("token {} at position {} is outside the model's vocabulary of {}", ids[i], i, vocab);
}

LossSum evaluate_samples(const LoadedModel& model, const data::Sampler& sampler, Index samples,
                         const EvaluationPlace& place) {
  RowLosses sum;
  if (samples > 0) {
    Forward forward(model, {samples, sampler.options().seq}, place.device, place.mesh, place.overlap);
    forward.run(
        [&](Index first, Index count, data::Batch& batch) {
          std::vector<Index> numbers(narrow<std::size_t>(count));
          std::iota(numbers.begin(), numbers.end(), first);
          sampler.fill(numbers, batch);
        },
        {.losses = [&](const data::Batch& rows, Index, const model::Flight& flight) {
          const std::vector<float> losses = row_losses(flight, place.device);
          if (place.mesh.coordinate().tp == 0) sum.add(losses, rows.targets);
        }});
  }
  return sum.total(place.mesh.world());
}

std::vector<ExactSum> evaluate_sequences(const LoadedModel& model, std::span<const TargetSequence> sequences,
                                         const EvaluationPlace& place) {
  std::vector<ExactSum> sums(sequences.size());
  std::map<Index, std::vector<std::size_t>, std::greater<>> by_length;
  for (std::size_t i = 0; i < sequences.size(); ++i)
    if (data::counted_targets(sequences[i].targets) > 0)
      by_length[rounded_length(sequences[i], model.config)].push_back(i);
  for (const auto& entry : by_length) {
    const std::vector<std::size_t>& numbers = entry.second;
    const Index length = entry.first;
    Forward forward(model, {std::ssize(numbers), length}, place.device, place.mesh, place.overlap);
    forward.run(
        [&](Index first, Index count, data::Batch& batch) {
          batch = {};
          batch.seq = length;
          for (Index i = first; i < first + count; ++i)
            append(sequences[numbers[narrow<std::size_t>(i)]], batch);
        },
        {.losses = [&](const data::Batch& rows, Index first, const model::Flight& flight) {
          const std::vector<float> losses = row_losses(flight, place.device);
          if (place.mesh.coordinate().tp != 0) return;
          for (Index s = 0; s < rows.sequences && first + s < std::ssize(numbers); ++s)
            for (Index t = s * rows.seq; t < (s + 1) * rows.seq; ++t)
              sums[numbers[narrow<std::size_t>(first + s)]].add(
                  static_cast<double>(losses[narrow<std::size_t>(t)]));
        }});
  }
  comm::sum_exactly(place.mesh.world(), sums);
  return sums;
}

SequenceResult evaluate_ids(const LoadedModel& model, std::span<const std::int32_t> ids, bool want_logits,
                            const EvaluationPlace& place) {
  check_ids(ids, model.config.vocab);
  SequenceResult result;
  if (ids.empty()) return result;
  const TargetSequence sequence = TargetSequence::of(ids);
  Forward forward(model, {1, std::ssize(ids)}, place.device, place.mesh, place.overlap);
  LogitsGatherer logits(model.config, std::ssize(ids), forward.padded_length(), place);
  RowLosses sum;
  RunnerHooks hooks;
  hooks.losses = [&](const data::Batch& rows, Index, const model::Flight& flight) {
    const std::vector<float> losses = row_losses(flight, place.device);
    if (place.mesh.coordinate().tp == 0) sum.add(losses, rows.targets);
  };
  if (want_logits)
    hooks.head = [&](model::Stage& stage, const model::Flight& flight, model::UnitSource& units) {
      // Other replicas compute rows that fill up.
      if (place.mesh.coordinate().dp == 0) logits.take(stage, flight, units);
    };
  forward.run(
      [&](Index, Index, data::Batch& batch) {
        batch = {};
        batch.seq = std::ssize(ids);
        append(sequence, batch);
      },
      hooks);
  result.loss = sum.total(place.mesh.world());
  if (want_logits) result.logits = logits.finish();
  return result;
}

}  // namespace cartan::train
