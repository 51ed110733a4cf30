// The order in which the units of a stage run.
#include "cartan/model/stage.hpp"

#include <utility>

#include "cartan/core/narrow.hpp"
#include "model/activation_offload.hpp"

namespace cartan::model {

using device::ArenaMatrix;
using device::ConstMatrix;
using device::Matrix;

struct Stage::State {
  State(const ModelConfig& config_, StageRange range, const StageOptions& options_,
        const TensorGroup& tensor_, const ContextGroup& context, device::Device& device_,
        device::Arena& arena, device::Arena* host)
      : config(config_),
        first_unit(range.first),
        options(options_),
        tensor(tensor_),
        device(device_),
        work{device_, arena, options_.compute},
        specs(describe_units(config_, tensor_.slice())),
        head(config_, options_.micro, tensor_),
        rope(make_rope_table(config_, options_.rope_positions, device_, options_.rope_rounding,
                             options_.rope_length)) {
    const auto model_units = narrow<Index>(specs.size());
    has_embedding = range.first == 0;
    has_head = range.end == model_units;
    has_copy = has_head && !has_embedding && config.tied;
    for (Index unit = range.first; unit < range.end; ++unit)
      if (unit > 0 && unit + 1 < model_units)
        blocks.emplace_back(config, specs[narrow<std::size_t>(unit)], tensor, context, fp8_of(unit - 1));
    for (std::size_t block = 0; block < blocks.size(); ++block)
      if (is_listed(options.offload_layers, block) && !offload) {
        CARTAN_ASSERT(host != nullptr);
        offload = std::make_unique<ActivationOffload>(device, *host);
      }
    while (first_trained < model_units && specs[narrow<std::size_t>(first_trained)].trained == 0)
      ++first_trained;
    trains_embedding = specs.front().trained > 0;
    trains_head = config.tied ? trains_embedding : specs.back().parameter("lm_head.weight").trained;
    const Index extra =
        has_head && trains_head && options.training ? options.head_slots - options.gradient_slots : 0;
    head_elements = part_of(config, tensor.slice()).vocab * config.hidden;
    if (extra > 0)
      extra_head_slots =
          device.allocate(narrow<std::size_t>(extra * head_elements) * sizeof(float),
                          device::MemoryKind::gradients, "further partial sums of the head's gradient");
  }

  device::Ops& ops() { return device.ops(); }
  device::Stream& stream() { return device.compute_stream(); }

  Block::Fp8Linears fp8_of(Index layer) const {
    if (options.fp8 == nullptr) return {};
    const auto of = [&](BlockLinear which) { return options.fp8->linear(layer, which); };
    return {of(BlockLinear::qkv), of(BlockLinear::o), of(BlockLinear::gate_up), of(BlockLinear::down)};
  }
  /// Whether the layer that a block is, is in a list of layers.
  bool is_listed(const std::vector<bool>& layers, std::size_t block) const {
    const auto layer = narrow<std::size_t>(first_unit + narrow<Index>(block) - (first_unit == 0 ? 0 : 1));
    return layer < layers.size() && layers[layer];
  }
  Recompute recompute_of(std::size_t block) const {
    return is_listed(options.recompute_layers, block) ? options.recompute : Recompute{};
  }
  Index model_unit(std::size_t block) const {
    return first_unit + narrow<Index>(block) + (has_embedding ? 1 : 0);
  }
  /// Whether the block, or a unit in front of it, is trained: then it has a backward pass.
  bool goes_back(std::size_t block) const { return model_unit(block) >= first_trained; }
  std::size_t block_unit(std::size_t block) const { return block + (has_embedding || has_copy ? 1 : 0); }
  std::size_t unit_count() const { return block_unit(blocks.size()) + (has_head ? 1 : 0); }
  // The caller's slots, and further ones for the states in the middle of a micro-batch.
  std::vector<float*> head_slots(const device::GradientView& gradient) const {
    std::vector<float*> slots;
    if (!trains_head) return slots;
    for (float* slot : gradient.slots) slots.push_back(slot + gradient.offset);
    for (int i = options.gradient_slots; i < options.head_slots; ++i)
      slots.push_back(extra_head_slots.as<float>() + (i - options.gradient_slots) * head_elements);
    return slots;
  }
  ArenaMatrix boundary(device::SequenceShape shape) const {
    return work.matrix(tensor.own_rows(shape).tokens(), config.hidden);
  }
  ConstMatrix table(const UnitView& unit) const {
    return {unit.data, unit.dtype, head_elements / config.hidden, config.hidden, config.hidden};
  }
  void backward_embedding(Flight& flight, UnitSource& source,
                          const std::function<void(std::size_t)>& unit_done) {
    if (trains_embedding) {
      const GatheredRows rows = tensor.gather(flight.d_embedded, flight.batch.shape, work);
      ops().embedding_backward(flight.batch.tokens, rows.view, flight.batch.shape,
                               first_vocabulary_row(config, tensor.slice()), head_elements / config.hidden,
                               source.gradient(0), stream());
    }
    unit_done(0);
  }

  ModelConfig config;
  Index first_unit;
  StageOptions options;
  TensorGroup tensor;
  device::Device& device;
  Workplace work;
  std::vector<UnitSpec> specs;
  std::vector<Block> blocks;
  Head head;
  RopeTable rope;
  bool has_embedding = false, has_head = false, has_copy = false;
  Index first_trained = 0;  ///< of the model's units
  bool trains_embedding = false, trains_head = false;
  std::unique_ptr<ActivationOffload> offload;
  Index head_elements = 0;
  device::Buffer extra_head_slots;
};

Stage::Stage(const ModelConfig& config, StageRange range, const StageOptions& options,
             const TensorGroup& tensor, const ContextGroup& context, device::Device& device,
             device::Arena& arena, device::Arena* host)
    : state_(std::make_unique<State>(config, range, options, tensor, context, device, arena, host)) {}
Stage::~Stage() = default;
Stage::Stage(Stage&&) noexcept = default;

bool Stage::has_head() const { return state_->has_head; }
std::size_t Stage::units() const { return state_->unit_count(); }
ArenaMatrix Stage::make_boundary(device::SequenceShape shape) const { return state_->boundary(shape); }

void Stage::forward(Flight& flight, UnitSource& units, bool keeps) {
  State& s = *state_;
  CARTAN_ASSERT(s.options.training || !keeps);
  const BatchView& batch = flight.batch;
  ArenaMatrix x = std::move(flight.input);
  if (s.has_embedding) {
    const HeldUnit unit(units, 0);
    if (!s.blocks.empty()) units.prefetch(1);
    x = s.boundary(batch.shape);
    const Index first = first_vocabulary_row(s.config, s.tensor.slice());
    if (s.tensor.is_alone()) {
      s.ops().embedding_forward(batch.tokens, s.table(*unit), first, x, s.stream());
    } else {
      const ArenaMatrix partial = s.work.matrix(batch.shape.tokens(), s.config.hidden);
      s.ops().embedding_forward(batch.tokens, s.table(*unit), first, partial, s.stream());
      s.tensor.sum_to_owners(partial, {}, x, batch.shape, s.work);
    }
  }
  flight.blocks.clear();
  flight.blocks.resize(keeps ? s.blocks.size() : 0);
  flight.offloaded.clear();
  flight.offloaded.resize(keeps && s.offload ? s.blocks.size() : 0);
  for (std::size_t i = 0; i < s.blocks.size(); ++i) {
    BlockActivations passing;
    const bool keeps_block = keeps && s.goes_back(i);
    BlockActivations& saved = keeps_block ? flight.blocks[i] : passing;
    saved.x = std::move(x);
    x = s.boundary(batch.shape);
    const HeldUnit unit(units, s.block_unit(i));
    if (s.block_unit(i) + 1 < s.unit_count()) units.prefetch(s.block_unit(i) + 1);
    s.blocks[i].forward(batch, *unit, s.rope, saved, x, keeps_block, s.work);
    Block::forget(saved, s.recompute_of(i));
    if (keeps_block && !flight.offloaded.empty() && s.is_listed(s.options.offload_layers, i))
      s.offload->send(saved, flight.offloaded[i]);
  }
  if (s.offload) s.offload->release();
  flight.output = std::move(x);
}

void Stage::loss(Flight& flight, UnitSource& units) {
  State& s = *state_;
  CARTAN_ASSERT(s.has_head);
  const HeldHead head(s.config, s.specs.back(), units, s.unit_count() - 1, s.head_elements / s.config.hidden);
  flight.row_loss = s.work.arena.vector(DType::f32, flight.batch.shape.tokens());
  s.head.loss(flight.batch, flight.output, head.norm(), head.matrix(), flight.row_loss, s.work);
}

ArenaMatrix Stage::backward(Flight& flight, UnitSource& units, ArenaMatrix d_output, Backward how,
                            const std::function<void(std::size_t)>& unit_done) {
  State& s = *state_;
  CARTAN_ASSERT(s.options.training);
  const BatchView& batch = flight.batch;
  if (how == Backward::weight) {
    for (std::size_t i = s.blocks.size(); i-- > 0;) {
      if (s.goes_back(i)) {
        const HeldUnit unit(units, s.block_unit(i));
        s.blocks[i].backward_weight(batch, *unit, flight.blocks[i], flight.gradients[i], s.work);
      }
      flight.blocks[i] = {};
      flight.gradients[i] = {};
      unit_done(s.block_unit(i));
    }
    if (s.has_embedding) s.backward_embedding(flight, units, unit_done);
    return {};
  }
  ArenaMatrix dx = std::move(d_output);
  if (s.has_head) {
    const HeldHead head(s.config, s.specs.back(), units, s.unit_count() - 1,
                        s.head_elements / s.config.hidden);
    const device::GradientView& to_matrix = head.unit().matrix_gradient;
    const std::vector<float*> slots = s.head_slots(to_matrix);
    const device::GradientView matrix{slots, 0, s.trains_head ? to_matrix.plan : nullptr};
    flight.row_loss = s.work.arena.vector(DType::f32, batch.shape.tokens());
    dx = s.head.loss_and_gradients(batch, flight.output, head.norm(), head.matrix(), flight.row_loss,
                                   flight.loss_scale, head.norm_gradient(), matrix, s.work);
  }
  if (s.has_head) {
    unit_done(s.unit_count() - 1);
    if (s.has_copy) unit_done(0);
  }
  flight.output.reset();
  flight.row_loss.reset();
  const bool apart = how == Backward::input;
  if (apart) flight.gradients.resize(s.blocks.size());
  for (std::size_t i = s.blocks.size(); i-- > 0;) {
    if (!s.goes_back(i)) {
      dx.reset();
      if (!apart) unit_done(s.block_unit(i));
      continue;
    }
    BlockGradients gradients;
    gradients.d_out = std::move(dx);
    {
      const HeldUnit unit(units, s.block_unit(i));
      const bool goes_on = s.model_unit(i) > s.first_trained;
      if (goes_on && i > 0) units.prefetch(s.block_unit(i) - 1);
      if (s.offload) {
        s.offload->fetch(flight.offloaded[i], flight.blocks[i], s.work.arena);
        if (goes_on && i > 0) s.offload->fetch(flight.offloaded[i - 1], flight.blocks[i - 1], s.work.arena);
        s.offload->arrive(flight.offloaded[i]);
      }
      s.blocks[i].recompute(batch, *unit, s.rope, flight.blocks[i], s.recompute_of(i), s.work);
      dx = s.blocks[i].backward_input(batch, *unit, s.rope, flight.blocks[i], gradients, !apart, goes_on,
                                      s.work);
      if (!apart) s.blocks[i].backward_weight(batch, *unit, flight.blocks[i], gradients, s.work);
    }
    if (apart) {
      flight.gradients[i] = std::move(gradients);
    } else {
      flight.blocks[i] = {};
      unit_done(s.block_unit(i));
    }
  }
  if (!s.has_embedding) {
    if (s.first_unit > s.first_trained) return dx;
    dx.reset();
    ArenaMatrix nothing = s.boundary(batch.shape);
    s.ops().fill_zero({nothing.data, nothing.dtype, nothing.rows * nothing.cols}, s.stream());
    return nothing;
  }
  flight.d_embedded = std::move(dx);
  if (!apart) s.backward_embedding(flight, units, unit_done);
  if (!apart) flight.d_embedded.reset();
  return {};
}

void Stage::logits(const Flight& flight, UnitSource& units, Index begin, Matrix out) {
  State& s = *state_;
  CARTAN_ASSERT(s.has_head);
  const HeldHead head(s.config, s.specs.back(), units, s.unit_count() - 1, s.head_elements / s.config.hidden);
  const ArenaMatrix own = s.work.matrix(flight.output.rows, s.config.hidden);
  s.ops().rmsnorm_forward(flight.output, head.norm(), static_cast<float>(s.config.norm_eps), own, {},
                          s.stream());
  const GatheredRows norm = s.tensor.gather(own, flight.batch.shape, s.work);
  s.ops().linear_forward(norm.view.row_block(begin, out.rows), head.matrix(), {}, out, false, {1, out.rows},
                         s.stream());
}

}  // namespace cartan::model
