// Activation memory of a stage, and the order in which its units run.
#include "cartan/model/stage.hpp"

#include <utility>

#include "cartan/core/narrow.hpp"

namespace cartan::model {

using device::ConstMatrix;
using device::ConstVector;
using device::Matrix;
using device::Vector;

namespace {
constexpr std::size_t kAlignment = 64;
}

void* ActivationLayout::take(std::size_t bytes) {
  std::byte* const at = base_ == nullptr ? nullptr : base_ + used_;
  used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return at;
}

Matrix ActivationLayout::matrix(DType dtype, Index rows, Index cols) {
  return device::as_matrix(take(size_of(dtype) * narrow<std::size_t>(rows * cols)), dtype, rows, cols);
}

Vector ActivationLayout::vector(DType dtype, Index size) {
  return {take(size_of(dtype) * narrow<std::size_t>(size)), dtype, size};
}

void add_mlp_activations(ActivationLayout& layout, const ModelConfig& c, DType dtype, Index tokens,
                         BlockActivations& a) {
  a.mid = layout.matrix(dtype, tokens, c.hidden);
  a.gate_up = layout.matrix(dtype, tokens, 2 * c.ffn);
}

BlockActivations make_activations(ActivationLayout& layout, const ModelConfig& c, DType dtype, Index tokens,
                                  bool keep_mlp) {
  const Index q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  BlockActivations a;
  a.x = layout.matrix(dtype, tokens, c.hidden);
  a.inv_rms1 = layout.vector(DType::f32, tokens);
  a.qkv = layout.matrix(dtype, tokens, q + 2 * kv);
  if (c.qk_norm) {
    a.qk = layout.matrix(dtype, tokens, q + kv);
    a.inv_rms_q = layout.vector(DType::f32, tokens * c.heads);
    a.inv_rms_k = layout.vector(DType::f32, tokens * c.kv_heads);
  }
  a.attention = layout.matrix(dtype, tokens, q);
  a.log_sum_exp = layout.vector(DType::f32, tokens * c.heads);
  a.inv_rms2 = layout.vector(DType::f32, tokens);
  if (keep_mlp) add_mlp_activations(layout, c, dtype, tokens, a);
  return a;
}

BlockWorkspace make_workspace(ActivationLayout& layout, const ModelConfig& c, DType dtype, Index tokens,
                              bool training) {
  const Index q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  BlockWorkspace w;
  w.norm = layout.matrix(dtype, tokens, c.hidden);
  w.activated = layout.matrix(dtype, tokens, c.ffn);
  if (!training) return w;
  w.d_norm = layout.matrix(dtype, tokens, c.hidden);
  w.d_out = layout.matrix(dtype, tokens, c.hidden);
  w.d_mid = layout.matrix(dtype, tokens, c.hidden);
  w.d_attention = layout.matrix(dtype, tokens, q);
  w.d_qkv = layout.matrix(dtype, tokens, q + 2 * kv);
  return w;
}

namespace {

Vector first(Vector v, Index size) { return v.data == nullptr ? v : Vector{v.data, v.dtype, size}; }
Matrix first(Matrix m, Index rows) { return m.cols == 0 ? m : m.row_block(0, rows); }

// The same memory for a micro-batch of fewer tokens.
BlockActivations shrink(const BlockActivations& a, Index tokens, const ModelConfig& c) {
  return {first(a.x, tokens),
          first(a.inv_rms1, tokens),
          first(a.qkv, tokens),
          first(a.qk, tokens),
          first(a.inv_rms_q, tokens * c.heads),
          first(a.inv_rms_k, tokens * c.kv_heads),
          first(a.attention, tokens),
          first(a.log_sum_exp, tokens * c.heads),
          first(a.mid, tokens),
          first(a.inv_rms2, tokens),
          first(a.gate_up, tokens)};
}

BlockWorkspace shrink(const BlockWorkspace& w, Index tokens) {
  return {first(w.norm, tokens),  first(w.activated, tokens), first(w.d_norm, tokens),
          first(w.d_out, tokens), first(w.d_mid, tokens),     first(w.d_attention, tokens),
          first(w.d_qkv, tokens)};
}

}  // namespace

struct Stage::State {
  State(const ModelConfig& config_, StageRange range_, const StageOptions& options_, device::Device& device_)
      : config(config_),
        range(range_),
        options(options_),
        device(device_),
        units(describe_units(config_)),
        head(config_, options_.micro),
        rope(make_rope_table(config_, options_.micro.length, device_)) {
    has_embedding = range.first == 0;
    has_head = range.end == narrow<Index>(units.size());
    for (Index unit = range.first; unit < range.end; ++unit)
      if (unit > 0 && unit + 1 < narrow<Index>(units.size()))
        blocks.emplace_back(config, units[static_cast<std::size_t>(unit)]);
    ActivationLayout counting;
    lay_out(counting);
    memory =
        device.allocate(counting.bytes(), device::MemoryKind::activations, "activations of a micro-batch");
    ActivationLayout real(memory.data());
    lay_out(real);
    const Index extra = has_head && options.training ? options.head_slots - options.gradient_slots : 0;
    if (extra > 0)
      extra_head_slots =
          device.allocate(narrow<std::size_t>(extra * config.vocab * config.hidden) * sizeof(float),
                          device::MemoryKind::gradients, "further partial sums of the head's gradient");
  }

  void lay_out(ActivationLayout& layout) {
    const Index tokens = options.micro.tokens();
    const auto sets = options.training ? blocks.size() : std::size_t{1};
    saved.clear();
    BlockActivations shared;
    for (std::size_t i = 0; i < sets; ++i) {
      const bool keeps = !options.training || !recomputes(i);
      saved.push_back(make_activations(layout, config, options.compute, tokens, keeps));
      if (keeps) continue;
      if (shared.mid.cols == 0) add_mlp_activations(layout, config, options.compute, tokens, shared);
      saved.back().mid = shared.mid;
      saved.back().gate_up = shared.gate_up;
    }
    output = layout.matrix(options.compute, tokens, config.hidden);
    work = make_workspace(layout, config, options.compute, tokens, options.training);
    if (!has_head) return;
    row_loss = layout.vector(DType::f32, tokens);
    logits = layout.vector(DType::f32, head.logits_elements());
    if (options.training) final_inv_rms = layout.vector(DType::f32, tokens);
  }

  device::Ops& ops() { return device.ops(); }
  device::Stream& stream() { return device.compute_stream(); }

  bool recomputes(std::size_t block) const { return narrow<Index>(block) < options.recompute_mlp; }
  std::size_t block_unit(std::size_t block) const { return block + (has_embedding ? 1 : 0); }
  std::size_t last_unit() const { return narrow<std::size_t>(range.end - range.first) - 1; }
  // The caller's slots, and further ones for the states in the middle of a micro-batch.
  std::vector<float*> head_slots(const device::GradientView& gradient) const {
    std::vector<float*> slots;
    for (float* slot : gradient.slots) slots.push_back(slot + gradient.offset);
    const Index size = config.vocab * config.hidden;
    for (int i = options.gradient_slots; i < options.head_slots; ++i)
      slots.push_back(extra_head_slots.as<float>() + (i - options.gradient_slots) * size);
    return slots;
  }

  ModelConfig config;
  StageRange range;
  StageOptions options;
  device::Device& device;
  std::vector<UnitSpec> units;
  std::vector<Block> blocks;
  Head head;
  RopeTable rope;
  bool has_embedding = false, has_head = false;
  device::Buffer memory, extra_head_slots;
  std::vector<BlockActivations> saved;
  BlockWorkspace work;
  Matrix output;
  Vector row_loss, logits, final_inv_rms;
};

Stage::Stage(const ModelConfig& config, StageRange range, const StageOptions& options, device::Device& device)
    : state_(std::make_unique<State>(config, range, options, device)) {}
Stage::~Stage() = default;
Stage::Stage(Stage&&) noexcept = default;

StageRange Stage::range() const { return state_->range; }

void Stage::forward(const BatchView& batch, UnitSource& units) {
  State& s = *state_;
  const Index tokens = batch.shape.tokens();
  const Matrix output = s.output.row_block(0, tokens);
  BlockWorkspace work = shrink(s.work, tokens);
  if (s.has_embedding) {
    const HeldUnit unit(units, 0);
    const ConstMatrix table{unit->data, unit->dtype, s.config.vocab, s.config.hidden, s.config.hidden};
    s.ops().embedding_forward(batch.tokens, table, 0,
                              s.blocks.empty() ? output : s.saved[0].x.row_block(0, tokens), s.stream());
  }
  for (std::size_t i = 0; i < s.blocks.size(); ++i) {
    BlockActivations saved = shrink(s.saved[s.options.training ? i : 0], tokens, s.config);
    const bool last = i + 1 == s.blocks.size();
    const Matrix out = last || !s.options.training ? output : s.saved[i + 1].x.row_block(0, tokens);
    const HeldUnit unit(units, s.block_unit(i));
    if (s.block_unit(i) < s.last_unit()) units.prefetch(s.block_unit(i) + 1);
    s.blocks[i].forward(batch, *unit, s.rope, saved, work, out, s.ops(), s.stream());
    if (!last && !s.options.training) s.ops().copy(output, saved.x, s.stream());
  }
}

void Stage::loss(const BatchView& batch, UnitSource& units) {
  State& s = *state_;
  CARTAN_ASSERT(s.has_head);
  const Index tokens = batch.shape.tokens();
  const HeldHead head(s.config, s.units.back(), units, s.last_unit());
  s.head.loss(batch, s.output.row_block(0, tokens), head.norm(), head.matrix(),
              s.work.norm.row_block(0, tokens), s.logits, s.row_loss.slice(0, tokens), s.ops(), s.stream());
}

void Stage::backward(const BatchView& batch, UnitSource& units,
                     const std::function<void(std::size_t)>& unit_done) {
  State& s = *state_;
  CARTAN_ASSERT(s.options.training && s.has_head);
  const Index tokens = batch.shape.tokens();
  BlockWorkspace work = shrink(s.work, tokens);
  {
    const HeldHead head(s.config, s.units.back(), units, s.last_unit());
    const device::GradientView& gradient = head.unit().gradient;
    const std::vector<float*> slots = s.head_slots(head.unit().matrix_gradient);
    s.head.loss_and_gradients(batch, s.output.row_block(0, tokens), head.norm(), head.matrix(), work.norm,
                              work.d_norm, first(s.final_inv_rms, tokens), s.logits,
                              s.row_loss.slice(0, tokens), work.d_out, gradient, {slots, 0, gradient.plan},
                              s.ops(), s.stream());
  }
  unit_done(s.last_unit());
  // Two buffers take turns as gradient of a block's output and of its input; the second one is the output of
  // the forward pass, which nobody needs any more.
  Matrix dx = s.output.row_block(0, tokens);
  for (std::size_t i = s.blocks.size(); i-- > 0;) {
    BlockActivations saved = shrink(s.saved[i], tokens, s.config);
    {
      const HeldUnit unit(units, s.block_unit(i));
      if (i > 0) units.prefetch(s.block_unit(i) - 1);
      if (s.recomputes(i)) s.blocks[i].compute_mlp_input(batch, *unit, saved, work, s.ops(), s.stream());
      s.blocks[i].backward_input(batch, *unit, s.rope, saved, work, dx, s.ops(), s.stream());
      s.blocks[i].backward_weight(batch, *unit, saved, work, s.ops(), s.stream());
    }
    std::swap(work.d_out, dx);
    unit_done(s.block_unit(i));
  }
  if (!s.has_embedding) return;
  s.ops().embedding_backward(batch.tokens, work.d_out, batch.shape, 0, s.config.vocab, units.gradient(0),
                             s.stream());
  unit_done(0);
}

ConstVector Stage::row_losses() const { return state_->row_loss; }

void Stage::logits(UnitSource& units, Index begin, Matrix out) {
  State& s = *state_;
  const HeldHead head(s.config, s.units.back(), units, s.last_unit());
  const Matrix norm = s.work.norm.row_block(begin, out.rows);
  s.ops().rmsnorm_forward(s.output.row_block(begin, out.rows), head.norm(),
                          static_cast<float>(s.config.norm_eps), norm, {}, s.stream());
  s.ops().linear_forward(norm, head.matrix(), {}, out, false, {1, out.rows}, s.stream());
}

ConstMatrix Stage::hidden(Index layer, Index rows) const {
  const State& s = *state_;
  CARTAN_ASSERT(s.options.training);
  const auto index = static_cast<std::size_t>(layer);
  return (index < s.saved.size() ? s.saved[index].x : s.output).row_block(0, rows);
}

}  // namespace cartan::model
