// Choosing the next token from logits.
#pragma once

#include <cstdint>
#include <span>

#include "cartan/core/random.hpp"
#include "cartan/core/types.hpp"

namespace cartan::infer {

struct SamplingOptions {
  double temperature = 0;  ///< 0: the largest logit (the first one among equals)
  Index top_k = 0;         ///< only the k largest logits; 0: all
  double top_p =
      1;  ///< the smallest set of likeliest tokens with at least this probability (Holtzman et al. 2020)
};

/// The token for position `position` of a text; `random` makes it a function of seed and position.
std::int32_t sample(std::span<const float> logits, const SamplingOptions& options, const RandomStream& random,
                    std::uint64_t position);

}  // namespace cartan::infer
