// Settings of compressed gradients.
#pragma once

#include <string>

#include "cartan/core/error.hpp"
#include "cartan/core/types.hpp"

namespace cartan::shard {

/// How gradients travel over the data plane where every rank keeps whole ones (ZeRO stages 0 and 1). What a
/// rank does not send of its gradient it adds to the next one (error feedback).
struct HookConfig {
  std::string gradient = "none";  ///< none: whole | powersgd: two thin factors | topk: the largest elements
  int rank = 2;                   ///< powersgd: rows of a factor
  double fraction = 0.01;         ///< topk: share of each unit's elements that a rank sends
  Index warmup = 10;              ///< first updates of a training, whose gradients travel whole
};

/// Adds what is wrong, by the names of the keys.
void check(const HookConfig& config, Problems& problems);

}  // namespace cartan::shard
