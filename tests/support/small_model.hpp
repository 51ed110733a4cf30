// A model with odd sizes for tests of what is around it.
#pragma once

#include "cartan/model/config.hpp"

namespace cartan::testing {

inline model::ModelConfig small_model(Index layers, bool tied = false) {
  model::ModelConfig config;
  config.hidden = 24;
  config.layers = layers;
  config.heads = 3;
  config.ffn = 31;
  config.tied = tied;
  config.derive(57);
  return config;
}

}  // namespace cartan::testing
