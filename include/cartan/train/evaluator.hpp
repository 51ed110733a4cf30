// Loss and logits of a model without training it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cartan/data/sampler.hpp"
#include "cartan/train/engine.hpp"
#include "cartan/train/loaded_model.hpp"

namespace cartan::train {

/// Summed loss over the first `samples` samples of a sampler, in canonical order: any number of ranks gives
/// the same bits. Collective over `comm`, whose ranks share the samples.
LossSum evaluate_samples(const LoadedModel& model, const data::Sampler& sampler, Index samples,
                         device::Device& device, comm::Communicator& comm);

struct SequenceResult {
  LossSum loss;               ///< of ids[1 ...] given what stands before; 0 targets for fewer than two ids
  std::vector<float> logits;  ///< [ids, V] where asked for
};

/// One sequence of token ids. Throws DataError for an id outside the vocabulary.
SequenceResult evaluate_ids(const LoadedModel& model, std::span<const std::int32_t> ids, bool want_logits,
                            device::Device& device);

}  // namespace cartan::train
