// Texts from a model: prefill of each prompt in pieces, then one token at a time of several texts together,
// against a cache of keys and values, on any mesh.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cartan/comm/mesh_groups.hpp"
#include "cartan/device/device.hpp"
#include "cartan/model/config.hpp"
#include "cartan/shard/flat_state.hpp"

namespace cartan::infer {

using SamplingOptions = device::SamplingRule;

struct GenerateOptions {
  Index max_new_tokens = 64;
  SamplingOptions sampling;
  /// Logits of tokens that stand in the text, prompt included, are divided by it where they are positive and
  /// multiplied by it where they are negative; 1: as they are. Source: Keskar et al. 2019 (CTRL),
  /// arXiv:1909.05858.
  double repetition_penalty = 1;
  std::uint64_t seed = 1234;             ///< a token depends on it, on the logits and on its position only
  std::vector<std::int32_t> end_tokens;  ///< a text ends after one of them; it is part of the result
};

struct Request {
  std::vector<std::int32_t> prompt;
  GenerateOptions options;
  std::string name = "prompt";  ///< in errors: "prompts.txt:3"
};

/// Why a text is over.
enum class Finish {
  end,     ///< an end token
  stop,    ///< the caller had enough
  length,  ///< as many new tokens as were asked for
};

struct Continuation {
  std::vector<std::int32_t> tokens;  ///< the new ones
  Finish finish = Finish::length;
};

struct GeneratorOptions {
  Index max_length = 0;      ///< of a text, prompt included
  Index texts = 1;           ///< that are written together: each has its cache of keys and values
  Index prefill_rows = 128;  ///< tokens of a prompt that are computed together
};

/// Throws, naming the request, DataError for a prompt that is empty or has ids outside the vocabulary.
void check_prompt(const Request& request, Index vocab);

class Generator {
 public:
  /// `state` holds the units and slices of this rank's place of the mesh (train::load_model) and must outlive
  /// the generator, as device and mesh must. Collective over the mesh.
  Generator(const model::ModelConfig& config, shard::FlatState& state, const GeneratorOptions& options,
            device::Device& device, comm::Mesh& mesh);
  ~Generator();

  /// Sees each new token of requests[number] as it comes; false: the text ends after it.
  using OnToken = std::function<bool(std::size_t number, std::int32_t token)>;
  /// Sees a continuation that is over, while others are written.
  using OnEnd = std::function<void(std::size_t number, const Continuation& continuation)>;

  /// The continuation of each request. As soon as a text is over the next one takes its place; what becomes
  /// of a request does not depend on the others. Throws, before anything is computed, as check_prompt does,
  /// and ConfigError for a prompt that leaves no room for its new tokens; NumericError that names the
  /// position where the logits allow no choice: a NaN, or a largest one that is infinite. All name the
  /// request. Collective over the ranks of a replica (all but dp): they give the same requests, and on_token
  /// says the same on all of them.
  std::vector<Continuation> generate(std::span<const Request> requests, const OnToken& on_token = {},
                                     const OnEnd& on_end = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cartan::infer
