// Text from a model: prefill of the prompt in pieces, then one token at a time against a cache of keys and
// values.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cartan/device/device.hpp"
#include "cartan/model/config.hpp"
#include "cartan/shard/flat_state.hpp"

namespace cartan::infer {

using SamplingOptions = device::SamplingRule;

struct GenerateOptions {
  Index max_new_tokens = 64;
  SamplingOptions sampling;
  std::uint64_t seed = 1234;    ///< a token depends on it, on the logits and on its position only
  std::int32_t end_token = -1;  ///< generation ends after it; it is part of the result. -1: none
};

class Generator {
 public:
  /// Room for texts of up to `max_length` tokens. `state` holds the whole model and must outlive the
  /// generator.
  Generator(const model::ModelConfig& config, shard::FlatState& state, Index max_length,
            device::Device& device);
  ~Generator();

  /// The new tokens after `prompt` (not empty, ids inside the vocabulary: else DataError). on_token, where
  /// given, sees each one as it comes. Throws NumericError that names the position where the logits allow no
  /// choice: a NaN, or a largest one that is infinite.
  std::vector<std::int32_t> generate(std::span<const std::int32_t> prompt, const GenerateOptions& options,
                                     const std::function<void(std::int32_t)>& on_token = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cartan::infer
