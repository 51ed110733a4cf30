// Losses and logits of a model without training it, on any mesh that the model lies on. Sequences are shared
// over dp, and no number of replicas changes a bit of the results; tp and cp agree up to rounding.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cartan/core/exact_sum.hpp"
#include "cartan/data/sampler.hpp"
#include "cartan/train/engine.hpp"
#include "cartan/train/loaded_model.hpp"

namespace cartan::train {

/// Where a loaded model is evaluated: the mesh it was loaded on.
struct EvaluationPlace {
  device::Device& device;
  comm::Mesh& mesh;
  bool overlap = false;  ///< messages travel beside computing: overlaps() of run_device.hpp
};

/// Summed loss over the first `samples` samples of a sampler. Collective over the mesh.
LossSum evaluate_samples(const LoadedModel& model, const data::Sampler& sampler, Index samples,
                         const EvaluationPlace& place);

/// One document from its first token on.
struct TargetSequence {
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> targets;  ///< of each id the token to be predicted after it, or kIgnoredTarget

  /// Of ids[first ...], first at least 1, each given all ids before it.
  static TargetSequence of(std::span<const std::int32_t> ids, Index first = 1);
};

/// Throws DataError for an id outside of the vocabulary, with its position.
void check_ids(std::span<const std::int32_t> ids, Index vocab);

/// The summed loss of each sequence, in nats, for ids in the vocabulary; all ranks bring the same sequences
/// and get the same sums. Sequences of similar length are computed together, with rows added at their ends
/// that change nothing. Collective over the mesh.
std::vector<ExactSum> evaluate_sequences(const LoadedModel& model, std::span<const TargetSequence> sequences,
                                         const EvaluationPlace& place);

struct SequenceResult {
  LossSum loss;               ///< of ids[1 ...] given what stands before; 0 targets for fewer than two ids
  std::vector<float> logits;  ///< [ids, V] on rank 0 where asked for
};

/// One sequence of token ids. Throws DataError for an id outside the vocabulary. Collective over the mesh.
SequenceResult evaluate_ids(const LoadedModel& model, std::span<const std::int32_t> ids, bool want_logits,
                            const EvaluationPlace& place);

}  // namespace cartan::train
