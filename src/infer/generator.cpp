#include "cartan/infer/generator.hpp"

#include <algorithm>
#include <numeric>

#include "cartan/core/narrow.hpp"
#include "cartan/model/block.hpp"
#include "cartan/model/stage.hpp"

namespace cartan::infer {
namespace {

using device::Matrix;
using device::MemoryKind;

// Rows of the prompt that are computed together.
constexpr Index kPrefillRows = 128;

}  // namespace

struct Generator::State {
  State(const model::ModelConfig& config_, shard::FlatState& parameters, Index max_length_,
        device::Device& device_)
      : config(config_),
        device(device_),
        max_length(max_length_),
        rows(std::min(kPrefillRows, max_length_)),
        compute(parameters.compute_dtype()),
        units(parameters.units()),
        rope(model::make_rope_table(config_, max_length_, device_)) {
    const auto& flat = parameters.layout().units();
    for (std::size_t i = 1; i + 1 < flat.size(); ++i) blocks.emplace_back(config, *flat[i].spec);
    head_spec = flat.back().spec;
    model::ActivationLayout counting;
    lay_out(counting);
    memory =
        device.allocate(counting.bytes(), MemoryKind::activations, "activations and cache of generation");
    model::ActivationLayout real(memory.data());
    lay_out(real);
  }

  void lay_out(model::ActivationLayout& layout) {
    saved = model::make_activations(layout, config, compute, rows, true);
    work = model::make_workspace(layout, config, compute, rows, false);
    output = layout.matrix(compute, rows, config.hidden);
    logits = layout.matrix(DType::f32, 1, config.vocab);
    integers = layout.vector(DType::i32, 3 * rows);
    caches.clear();
    for (std::size_t i = 0; i < 2 * blocks.size(); ++i)
      caches.push_back(layout.matrix(compute, max_length, config.kv_heads * config.head_dim));
  }

  /// Runs tokens that follow `cached` earlier ones; logits then holds those of the last token.
  void run(std::span<const std::int32_t> tokens, Index cached) {
    const auto count = narrow<Index>(tokens.size());
    device::Stream& stream = device.compute_stream();
    device::Ops& ops = device.ops();
    std::vector<std::int32_t> positions(tokens.size()), starts(tokens.size(), 0);
    std::iota(positions.begin(), positions.end(), narrow<std::int32_t>(cached));
    const auto upload = [&](std::span<const std::int32_t> values, Index slot) {
      auto* target = static_cast<std::int32_t*>(integers.data) + slot * rows;
      device.copy_in(target, values.data(), values.size_bytes(), stream);
      return std::span<const std::int32_t>(target, values.size());
    };
    model::BatchView batch;
    batch.shape = {1, count};
    batch.tokens = upload(tokens, 0);
    batch.positions = upload(positions, 1);
    batch.document_start = upload(starts, 2);
    model::BlockActivations a = saved;
    for (Matrix* m : {&a.x, &a.qkv, &a.attention, &a.mid, &a.gate_up}) *m = m->row_block(0, count);
    if (config.qk_norm) a.qk = a.qk.row_block(0, count);
    a.inv_rms1 = a.inv_rms2 = a.inv_rms_q = a.inv_rms_k = a.log_sum_exp = {};
    model::BlockWorkspace w;
    w.norm = work.norm.row_block(0, count);
    w.activated = work.activated.row_block(0, count);
    const Matrix out = output.row_block(0, count);
    {
      const model::HeldUnit unit(units, 0);
      ops.embedding_forward(batch.tokens,
                            {unit->data, unit->dtype, config.vocab, config.hidden, config.hidden}, 0, a.x,
                            stream);
    }
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const model::HeldUnit unit(units, i + 1);
      blocks[i].decode(batch, *unit, rope, a, w, caches[2 * i], caches[2 * i + 1], cached, out, ops, stream);
      ops.copy(out, a.x, stream);
    }
    const Matrix norm = w.norm.row_block(0, 1);
    const model::HeldHead head(config, *head_spec, units, blocks.size() + 1);
    ops.rmsnorm_forward(out.row_block(count - 1, 1), head.norm(), static_cast<float>(config.norm_eps), norm,
                        {}, stream);
    ops.linear_forward(norm, head.matrix(), {}, logits, false, {1, 1}, stream);
    stream.synchronize();  // the uploads above came from this function's memory
  }

  model::ModelConfig config;
  device::Device& device;
  Index max_length, rows;
  DType compute;
  shard::FlatUnits units;
  model::RopeTable rope;
  std::vector<model::Block> blocks;
  const model::UnitSpec* head_spec = nullptr;
  device::Buffer memory;
  model::BlockActivations saved;
  model::BlockWorkspace work;
  Matrix output, logits;
  device::Vector integers;
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
  for (Index begin = 0; begin < length; begin += s.rows)
    s.run(prompt.subspan(static_cast<std::size_t>(begin),
                         static_cast<std::size_t>(std::min(s.rows, length - begin))),
          begin);
  const RandomStream random(options.seed, "sampling");
  std::vector<std::int32_t> result;
  std::vector<float> logits(static_cast<std::size_t>(s.config.vocab));
  for (Index i = 0; i < options.max_new_tokens; ++i) {
    s.device.copy_out(logits.data(), s.logits.data, logits.size() * sizeof(float), s.device.compute_stream());
    s.device.compute_stream().synchronize();
    const std::int32_t token =
        sample(logits, options.sampling, random, static_cast<std::uint64_t>(length + i));
    result.push_back(token);
    if (on_token) on_token(token);
    if (token == options.end_token || i + 1 == options.max_new_tokens) break;
    s.run({&token, 1}, length + i);
  }
  return result;
}

}  // namespace cartan::infer
