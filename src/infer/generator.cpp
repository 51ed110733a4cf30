#include "cartan/infer/generator.hpp"

#include <algorithm>
#include <numeric>

#include "cartan/core/error.hpp"
#include "cartan/core/narrow.hpp"
#include "cartan/core/random.hpp"
#include "cartan/model/block.hpp"
#include "cartan/model/stage.hpp"

namespace cartan::infer {
namespace {

using device::Matrix;
using device::MemoryKind;

// Rows of the prompt that are computed together.
constexpr Index kPrefillRows = 128;

/// Of the next token: what it depends on beside the logits, and its id.
struct Choice {
  double uniform;
  std::int32_t token;
};

}  // namespace

struct Generator::State {
  State(const model::ModelConfig& config_, shard::FlatState& parameters, Index max_length_,
        device::Device& device_)
      : config(config_),
        device(device_),
        max_length(max_length_),
        rows(std::min(kPrefillRows, max_length_)),
        compute(parameters.compute_dtype()),
        units(parameters.units()) {
    turn_for(1);
    const auto& flat = parameters.layout().units();
    for (std::size_t i = 1; i + 1 < flat.size(); ++i)
      blocks.emplace_back(config, *flat[i].spec, model::TensorGroup(), model::ContextGroup());
    head_spec = flat.back().spec;
    const Index width = config.kv_heads * config.head_dim;
    const std::size_t cache_bytes = size_of(compute) * narrow<std::size_t>(max_length * width);
    for (std::size_t i = 0; i < 2 * blocks.size(); ++i) {
      memory.push_back(device.allocate(cache_bytes, MemoryKind::activations, "keys and values"));
      caches.push_back(device::as_matrix(memory.back().data(), compute, max_length, width));
    }
    memory.push_back(device.allocate(narrow<std::size_t>(4 * rows) * sizeof(std::int32_t),
                                     MemoryKind::activations, "tokens"));
    integers = memory.back().as<std::int32_t>();
    memory.push_back(device.allocate(narrow<std::size_t>(config.vocab) * sizeof(float),
                                     MemoryKind::activations, "logits"));
    logits = device::as_matrix(memory.back().data(), DType::f32, 1, config.vocab);
    memory.push_back(device.allocate(sizeof(Choice), MemoryKind::activations, "next token"));
    choice = memory.back().as<Choice>();
    // A rehearsal of the largest call tells what it needs.
    device::Arena measuring;
    const auto sim = device::make_sim_device(device::DeviceKind::cpu, {1});
    const std::vector<std::int32_t> zeros(narrow<std::size_t>(rows));
    model::BatchView batch{{1, rows}, zeros, {}, zeros, zeros, {}, zeros, {}};
    run_in({*sim, measuring, compute}, batch, 0);
    arena = std::make_unique<device::Arena>(
        device.allocate(measuring.peak(), MemoryKind::activations, "activations of generation"));
  }

  /// Positions turn as in a sequence of `length` tokens from now on. Whether they turned otherwise before.
  bool turn_for(Index length) {
    if (!frequencies.empty() && !model::rope_depends_on_length(config)) return false;
    std::vector<double> wanted = model::rope_frequencies(config, length);
    if (wanted == frequencies) return false;
    frequencies = std::move(wanted);
    rope = model::make_rope_table(config, max_length, device, DType::f32, length);
    return true;
  }

  /// Runs tokens that follow `cached` earlier ones; logits then holds those of the last token.
  void run(std::span<const std::int32_t> tokens, Index cached) {
    const auto count = narrow<Index>(tokens.size());
    std::vector<std::int32_t> positions(tokens.size()), starts(tokens.size(), 0);
    std::iota(positions.begin(), positions.end(), narrow<std::int32_t>(cached));
    const auto upload = [&](std::span<const std::int32_t> values, Index slot) {
      std::int32_t* target = integers + slot * rows;
      device.copy_in(target, values.data(), values.size_bytes(), device.compute_stream());
      return std::span<const std::int32_t>(target, values.size());
    };
    model::BatchView batch;
    batch.shape = {1, count};
    batch.tokens = upload(tokens, 0);
    batch.positions = upload(positions, 1);
    batch.document_start = upload(starts, 2);
    if (config.window > 0) {
      for (std::size_t i = 0; i < starts.size(); ++i)
        starts[i] = std::max(0, positions[i] + 1 - narrow<std::int32_t>(std::min(config.window, max_length)));
      batch.window_start = upload(starts, 3);
    }
    run_in({device, *arena, compute}, batch, cached);
  }

  void run_in(const model::Workplace& work, const model::BatchView& batch, Index cached) {
    const Index count = batch.shape.length;
    device::ArenaMatrix x = work.matrix(count, config.hidden);
    {
      const model::HeldUnit unit(units, 0);
      work.ops().embedding_forward(batch.tokens,
                                   {unit->data, unit->dtype, config.vocab, config.hidden, config.hidden}, 0,
                                   x, work.stream());
    }
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const model::HeldUnit unit(units, i + 1);
      model::BlockActivations passing;
      passing.x = std::move(x);
      x = work.matrix(count, config.hidden);
      blocks[i].decode(batch, *unit, rope, passing, caches[2 * i], caches[2 * i + 1], cached, x, work);
    }
    const device::ArenaMatrix norm = work.matrix(1, config.hidden);
    const model::HeldHead head(config, *head_spec, units, blocks.size() + 1, config.vocab);
    work.ops().rmsnorm_forward(x.row_block(count - 1, 1), head.norm(), static_cast<float>(config.norm_eps),
                               norm, {}, work.stream());
    work.ops().linear_forward(norm, head.matrix(), {}, logits, false, {1, 1}, work.stream());
  }

  /// The token at `position`, chosen on the device from the logits of the one before.
  std::int32_t next_token(const device::SamplingRule& rule, double uniform, Index position) {
    device::Stream& stream = device.compute_stream();
    device.copy_in(&choice->uniform, &uniform, sizeof uniform, stream);
    device.ops().sample(logits, {&choice->uniform, 1}, rule, {&choice->token, 1}, stream);
    std::int32_t token = 0;
    device.copy_out(&token, &choice->token, sizeof token, stream);
    if (token < 0)
      throw NumericError(
          "position {}: the logits have a NaN, or the largest one is infinite: parameters are not finite, or "
          "numbers grow too large for {} (another precision.compute may help)",
          position, name_of(compute));
    return token;
  }

  model::ModelConfig config;
  device::Device& device;
  Index max_length, rows;
  DType compute;
  shard::FlatUnits units;
  std::vector<double> frequencies;  ///< of the table
  model::RopeTable rope;
  std::vector<model::Block> blocks;
  const model::UnitSpec* head_spec = nullptr;
  std::vector<device::Buffer> memory;
  std::unique_ptr<device::Arena> arena;
  std::int32_t* integers = nullptr;
  Matrix logits;
  Choice* choice = nullptr;
  std::vector<Matrix> caches;  ///< keys and values of each block in turn
};

Generator::Generator(const model::ModelConfig& config, shard::FlatState& state, Index max_length,
                     device::Device& device)
    : state_(std::make_unique<State>(config, state, max_length, device)) {}
Generator::~Generator() = default;

std::vector<std::int32_t> Generator::generate(std::span<const std::int32_t> prompt,
                                              const GenerateOptions& options,
                                              const std::function<void(std::int32_t)>& on_token) {
  State& s = *state_;
  if (prompt.empty()) throw DataError("the prompt is empty: give at least one token");
  for (std::size_t i = 0; i < prompt.size(); ++i)
    if (prompt[i] < 0 || prompt[i] >= s.config.vocab)
      throw DataError("prompt: token {} at position {} is outside the model's vocabulary of {}", prompt[i], i,
                      s.config.vocab);
  const auto length = narrow<Index>(prompt.size());
  if (length + options.max_new_tokens > s.max_length)
    throw ConfigError("prompt and new tokens are {} + {}, more than the {} that there is room for", length,
                      options.max_new_tokens, s.max_length);
  const RandomStream random(options.seed, "sampling");
  std::vector<std::int32_t> ids(prompt.begin(), prompt.end());
  Index cached = 0;
  for (Index i = 0; i < options.max_new_tokens; ++i) {
    const Index position = length + i;
    if (s.turn_for(position)) cached = 0;  // the keys that were kept turned otherwise
    while (cached < position) {
      const Index count = std::min(s.rows, position - cached);
      s.run(std::span(ids).subspan(narrow<std::size_t>(cached), narrow<std::size_t>(count)), cached);
      cached += count;
    }
    const std::int32_t token =
        s.next_token(options.sampling, random.uniform(static_cast<std::uint64_t>(position)), position);
    ids.push_back(token);
    if (on_token) on_token(token);
    if (token == options.end_token) break;
  }
  ids.erase(ids.begin(), ids.begin() + narrow<std::ptrdiff_t>(length));
  return ids;
}

}  // namespace cartan::infer
