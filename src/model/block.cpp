// Forward, dgrad and wgrad of a transformer block over the table of operations.
#include "cartan/model/block.hpp"

#include <algorithm>
#include <cmath>

#include "cartan/core/narrow.hpp"
#include "model/linear.hpp"

namespace cartan::model {

using device::ArenaMatrix;
using device::ConstMatrix;
using device::ConstVector;
using device::GradientView;
using device::Matrix;
using device::Ops;
using device::SequenceShape;
using device::Stream;
using device::Vector;

Block::Block(const ModelConfig& config, const UnitSpec& unit, const TensorGroup& tensor,
             const ContextGroup& context, const Fp8Linears& fp8)
    : tensor_(tensor),
      context_(context),
      hidden_(config.hidden),
      heads_(part_of(config, tensor.slice()).heads),
      kv_heads_(part_of(config, tensor.slice()).kv_heads),
      head_dim_(config.head_dim),
      ffn_(part_of(config, tensor.slice()).ffn),
      eps_(static_cast<float>(config.norm_eps)),
      bias_(config.qkv_bias),
      qk_norm_(config.qk_norm),
      windowed_(config.windowed_layers()[static_cast<std::size_t>(unit.layer)]),
      fp8_(fp8) {
  const std::string& first = unit.parameters.front().name;
  const std::string prefix = first.substr(0, first.rfind("input_layernorm"));
  const auto offset = [&](const char* name) { return unit.parameter(prefix + name).offset; };
  at_.norm1 = offset("input_layernorm.weight");
  at_.qkv = offset("self_attn.q_proj.weight");
  if (bias_) at_.qkv_bias = offset("self_attn.q_proj.bias");
  if (qk_norm_) {
    at_.q_norm = offset("self_attn.q_norm.weight");
    at_.k_norm = offset("self_attn.k_norm.weight");
  }
  at_.o = offset("self_attn.o_proj.weight");
  at_.norm2 = offset("post_attention_layernorm.weight");
  at_.gate_up = offset("mlp.gate_proj.weight");
  at_.down = offset("mlp.down_proj.weight");
}

ConstMatrix Block::matrix(const UnitView& unit, Index offset, Index rows, Index cols) const {
  return {device::advance(unit.data, unit.dtype, offset), unit.dtype, rows, cols, cols};
}

ConstVector Block::vector(const UnitView& unit, Index offset, Index size) const {
  return {device::advance(unit.data, unit.dtype, offset), unit.dtype, size};
}

ConstMatrix Block::rotated_q(const BlockActivations& saved) const {
  return (qk_norm_ ? saved.qk : saved.qkv).col_block(0, heads_ * head_dim_);
}

ConstMatrix Block::rotated_k(const BlockActivations& saved) const {
  return (qk_norm_ ? saved.qk : saved.qkv).col_block(heads_ * head_dim_, kv_heads_ * head_dim_);
}

ConstMatrix Block::values(const BlockActivations& saved) const {
  return saved.qkv.col_block((heads_ + kv_heads_) * head_dim_, kv_heads_ * head_dim_);
}

AttentionOperands Block::operands(const BatchView& batch, const BlockActivations& saved) const {
  return {batch.shape,
          heads_,
          kv_heads_,
          head_dim_,
          rotated_q(saved),
          rotated_k(saved),
          values(saved),
          first_seen(batch),
          windowed_ ? batch.all_window_start : batch.all_document_start};
}

std::span<const std::int32_t> Block::first_seen(const BatchView& batch) const {
  return windowed_ ? batch.window_start : batch.document_start;
}

device::AttentionShape Block::attention_shape(device::SequenceShape shape) const {
  return {shape.sequences,
          shape.length,
          shape.length,
          heads_,
          kv_heads_,
          head_dim_,
          static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim_))),
          0,
          0};
}

ArenaMatrix Block::normalize(ConstMatrix x, ConstVector weight, Vector inv_rms, const Workplace& work) const {
  ArenaMatrix own = work.matrix(x.rows, x.cols);
  work.ops().rmsnorm_forward(x, weight, eps_, own, inv_rms, work.stream());
  return own;
}

void Block::project(const BatchView& batch, const UnitView& unit, const RopeTable& rope,
                    BlockActivations& saved, bool keeps_statistics, const Workplace& work) const {
  Ops& ops = work.ops();
  Stream& stream = work.stream();
  const Index q_width = heads_ * head_dim_, k_width = kv_heads_ * head_dim_, tokens = batch.shape.tokens();
  if (keeps_statistics) saved.inv_rms1 = work.arena.vector(DType::f32, saved.x.rows);
  saved.qkv = work.matrix(tokens, q_width + 2 * k_width);
  {
    const ArenaMatrix norm = normalize(saved.x, vector(unit, at_.norm1, hidden_), saved.inv_rms1, work);
    const ConstVector bias = bias_ ? vector(unit, at_.qkv_bias, q_width + 2 * k_width) : ConstVector{};
    tensor_.column_split_product(norm, matrix(unit, at_.qkv, q_width + 2 * k_width, hidden_), bias, saved.qkv,
                                 batch.shape, fp8(BlockLinear::qkv), work);
  }
  if (qk_norm_) {
    saved.qk = work.matrix(tokens, q_width + k_width);
    if (keeps_statistics) {
      saved.inv_rms_q = work.arena.vector(DType::f32, tokens * heads_);
      saved.inv_rms_k = work.arena.vector(DType::f32, tokens * kv_heads_);
    }
    ops.rmsnorm_forward(saved.qkv.col_block(0, q_width), vector(unit, at_.q_norm, head_dim_), eps_,
                        saved.qk.col_block(0, q_width), saved.inv_rms_q, stream);
    ops.rmsnorm_forward(saved.qkv.col_block(q_width, k_width), vector(unit, at_.k_norm, head_dim_), eps_,
                        saved.qk.col_block(q_width, k_width), saved.inv_rms_k, stream);
  }
  const Matrix rotated = (qk_norm_ ? saved.qk : saved.qkv).col_block(0, q_width + k_width);
  ops.rope(rotated, head_dim_, batch.positions, rope.cosines, rope.sines, false, stream);
}

void Block::attend(const BatchView& batch, BlockActivations& saved, bool keeps_statistics,
                   const Workplace& work) const {
  saved.attention = work.matrix(batch.shape.tokens(), heads_ * head_dim_);
  if (keeps_statistics) saved.log_sum_exp = work.arena.vector(DType::f32, batch.shape.tokens() * heads_);
  context_.forward(operands(batch, saved), saved.attention, saved.log_sum_exp, work);
}

void Block::compute_mlp_input(const BatchView& batch, const UnitView& unit, BlockActivations& saved,
                              bool keeps_statistics, const Workplace& work) const {
  saved.mid = work.matrix(saved.x.rows, hidden_);
  tensor_.row_split_product(saved.attention, matrix(unit, at_.o, hidden_, heads_ * head_dim_), saved.x,
                            saved.mid, batch.shape, fp8(BlockLinear::o), work);
  if (keeps_statistics) saved.inv_rms2 = work.arena.vector(DType::f32, saved.x.rows);
  saved.gate_up = work.matrix(batch.shape.tokens(), 2 * ffn_);
  const ArenaMatrix norm = normalize(saved.mid, vector(unit, at_.norm2, hidden_), saved.inv_rms2, work);
  tensor_.column_split_product(norm, matrix(unit, at_.gate_up, 2 * ffn_, hidden_), {}, saved.gate_up,
                               batch.shape, fp8(BlockLinear::gate_up), work);
}

void Block::finish(const BatchView& batch, const UnitView& unit, BlockActivations& saved, Matrix out,
                   bool keeps_statistics, const Workplace& work) const {
  compute_mlp_input(batch, unit, saved, keeps_statistics, work);
  const ArenaMatrix activated = work.matrix(batch.shape.tokens(), ffn_);
  work.ops().swiglu_forward(saved.gate_up, activated, work.stream());
  tensor_.row_split_product(activated, matrix(unit, at_.down, hidden_, ffn_), saved.mid, out, batch.shape,
                            fp8(BlockLinear::down), work);
}

void Block::forward(const BatchView& batch, const UnitView& unit, const RopeTable& rope,
                    BlockActivations& saved, Matrix out, bool keeps_statistics, const Workplace& work) const {
  project(batch, unit, rope, saved, keeps_statistics, work);
  attend(batch, saved, keeps_statistics, work);
  finish(batch, unit, saved, out, keeps_statistics, work);
}

void Block::forget(BlockActivations& saved, Recompute what) {
  if (what.attention) {
    saved.inv_rms1.reset();
    saved.qkv.reset();
    saved.qk.reset();
    saved.inv_rms_q.reset();
    saved.inv_rms_k.reset();
    saved.attention.reset();
    saved.log_sum_exp.reset();
  }
  if (what.mlp) {
    saved.mid.reset();
    saved.inv_rms2.reset();
    saved.gate_up.reset();
  }
}

void Block::recompute(const BatchView& batch, const UnitView& unit, const RopeTable& rope,
                      BlockActivations& saved, Recompute what, const Workplace& work) const {
  if (what.attention) {
    project(batch, unit, rope, saved, true, work);
    attend(batch, saved, true, work);
  }
  if (what.mlp) compute_mlp_input(batch, unit, saved, true, work);
}

void Block::decode(const BatchView& batch, std::span<const CachedText> texts, const UnitView& unit,
                   const RopeTable& rope, BlockActivations& saved, Matrix cache_k, Matrix cache_v, Matrix out,
                   const Workplace& work) const {
  const Index fresh = batch.shape.length;
  CARTAN_ASSERT(std::ssize(texts) == batch.shape.sequences && saved.x.rows == batch.shape.tokens());
  project(batch, unit, rope, saved, false, work);
  for (std::size_t t = 0; t < texts.size(); ++t) {
    const CachedText& text = texts[t];
    const Index begin = std::max(text.kept.begin, text.cached),
                count = std::min(text.kept.end, text.cached + fresh) - begin;
    if (count <= 0) continue;
    const Index from = narrow<Index>(t) * fresh + begin - text.cached,
                to = text.row + begin - text.kept.begin;
    work.ops().copy(rotated_k(saved).row_block(from, count), cache_k.row_block(to, count), work.stream());
    work.ops().copy(values(saved).row_block(from, count), cache_v.row_block(to, count), work.stream());
  }
  saved.attention = work.matrix(batch.shape.tokens(), heads_ * head_dim_);
  const auto attend = [&](const Matrix& to, const Vector& statistics) {
    device::AttentionShape shape = attention_shape({1, fresh});
    for (std::size_t t = 0; t < texts.size(); ++t) {
      const CachedText& text = texts[t];
      shape.q_first = text.cached;
      shape.k_first = text.kept.begin;
      shape.k_length =
          std::clamp<Index>(text.cached + fresh - text.kept.begin, 0, text.kept.end - text.kept.begin);
      const Index row = narrow<Index>(t) * fresh;
      work.ops().attention_forward(
          shape, rotated_q(saved).row_block(row, fresh), cache_k.row_block(text.row, shape.k_length),
          cache_v.row_block(text.row, shape.k_length),
          first_seen(batch).subspan(narrow<std::size_t>(row), narrow<std::size_t>(fresh)),
          to.row_block(row, fresh),
          statistics.data == nullptr ? Vector{} : statistics.slice(row * heads_, fresh * heads_),
          work.stream());
    }
  };
  context_.attend_to_parts(heads_, attend, saved.attention, work);
  finish(batch, unit, saved, out, false, work);
}

ArenaMatrix Block::backward_input(const BatchView& batch, const UnitView& unit, const RopeTable& rope,
                                  BlockActivations& saved, BlockGradients& gradients, bool joint,
                                  const Workplace& work) const {
  Ops& ops = work.ops();
  Stream& stream = work.stream();
  const Index q_width = heads_ * head_dim_, k_width = kv_heads_ * head_dim_, tokens = batch.shape.tokens();
  const SequenceShape own = tensor_.own_rows(batch.shape);
  const auto norm_gradient = [&](Index offset) { return joint ? unit.gradient.at(offset) : GradientView{}; };
  // MLP: the gradient of gate_up replaces gate_up, and `activated` ends as the recomputed input of the down
  // projection.
  gradients.activated = work.matrix(tokens, ffn_);
  gradients.all_d_out =
      tensor_.output_gradient(gradients.d_out, matrix(unit, at_.down, hidden_, ffn_), gradients.activated,
                              batch.shape, fp8(BlockLinear::down), work);
  if (!joint) gradients.all_d_out = {};
  ops.swiglu_backward(saved.gate_up, gradients.activated, saved.gate_up, gradients.activated, stream);
  gradients.d_mid = work.matrix(own.tokens(), hidden_);
  {
    ArenaMatrix d_norm = tensor_.input_gradient(saved.gate_up, matrix(unit, at_.gate_up, 2 * ffn_, hidden_),
                                                batch.shape, fp8(BlockLinear::gate_up), work);
    ops.copy(gradients.d_out, gradients.d_mid, stream);
    ops.rmsnorm_backward(saved.mid, vector(unit, at_.norm2, hidden_), saved.inv_rms2, d_norm, gradients.d_mid,
                         true, own, norm_gradient(at_.norm2), stream);
    if (!joint) gradients.d_norm2 = std::move(d_norm);
  }
  // Attention.
  gradients.d_qkv = work.matrix(tokens, q_width + 2 * k_width);
  const Matrix dq = gradients.d_qkv.col_block(0, q_width), dk = gradients.d_qkv.col_block(q_width, k_width),
               dv = gradients.d_qkv.col_block(q_width + k_width, k_width);
  {
    const ArenaMatrix d_attention = work.matrix(tokens, q_width);
    gradients.all_d_mid = tensor_.output_gradient(gradients.d_mid, matrix(unit, at_.o, hidden_, q_width),
                                                  d_attention, batch.shape, fp8(BlockLinear::o), work);
    if (!joint) gradients.all_d_mid = {};
    context_.backward(operands(batch, saved), saved.attention, saved.log_sum_exp, d_attention, dq, dk, dv,
                      work);
  }
  ops.rope(gradients.d_qkv.col_block(0, q_width + k_width), head_dim_, batch.positions, rope.cosines,
           rope.sines, true, stream);
  if (qk_norm_) {
    if (!joint) {
      gradients.d_qk = work.matrix(tokens, q_width + k_width);
      ops.copy(gradients.d_qkv.col_block(0, q_width + k_width), gradients.d_qk, stream);
    }
    ops.rmsnorm_backward(saved.qkv.col_block(0, q_width), vector(unit, at_.q_norm, head_dim_),
                         saved.inv_rms_q, dq, dq, false, batch.shape, norm_gradient(at_.q_norm), stream);
    ops.rmsnorm_backward(saved.qkv.col_block(q_width, k_width), vector(unit, at_.k_norm, head_dim_),
                         saved.inv_rms_k, dk, dk, false, batch.shape, norm_gradient(at_.k_norm), stream);
  }
  ArenaMatrix d_norm =
      tensor_.input_gradient(gradients.d_qkv, matrix(unit, at_.qkv, q_width + 2 * k_width, hidden_),
                             batch.shape, fp8(BlockLinear::qkv), work);
  ArenaMatrix dx = work.matrix(own.tokens(), hidden_);
  ops.copy(gradients.d_mid, dx, stream);
  ops.rmsnorm_backward(saved.x, vector(unit, at_.norm1, hidden_), saved.inv_rms1, d_norm, dx, true, own,
                       norm_gradient(at_.norm1), stream);
  if (!joint) gradients.d_norm1 = std::move(d_norm);
  return dx;
}

void Block::fold_norms(const BatchView& batch, const UnitView& unit, const BlockActivations& saved,
                       const BlockGradients& gradients, const Workplace& work) const {
  if (gradients.d_norm1.cols == 0) return;
  const SequenceShape own = tensor_.own_rows(batch.shape);
  const auto fold = [&](ConstMatrix x, Index offset, Index width, ConstVector inv_rms, ConstMatrix dy,
                        SequenceShape shape) {
    work.ops().rmsnorm_backward(x, vector(unit, offset, width), inv_rms, dy, {}, false, shape,
                                unit.gradient.at(offset), work.stream());
  };
  fold(saved.x, at_.norm1, hidden_, saved.inv_rms1, gradients.d_norm1, own);
  fold(saved.mid, at_.norm2, hidden_, saved.inv_rms2, gradients.d_norm2, own);
  if (!qk_norm_) return;
  const Index q_width = heads_ * head_dim_, k_width = kv_heads_ * head_dim_;
  fold(saved.qkv.col_block(0, q_width), at_.q_norm, head_dim_, saved.inv_rms_q,
       gradients.d_qk.col_block(0, q_width), batch.shape);
  fold(saved.qkv.col_block(q_width, k_width), at_.k_norm, head_dim_, saved.inv_rms_k,
       gradients.d_qk.col_block(q_width, k_width), batch.shape);
}

void Block::backward_weight(const BatchView& batch, const UnitView& unit, BlockActivations& saved,
                            BlockGradients& gradients, const Workplace& work) const {
  const GradientView& gradient = unit.gradient;
  const auto all = [&](GatheredRows& kept, const ArenaMatrix& own) {
    return kept.view.cols > 0 ? std::move(kept) : tensor_.gather(own, batch.shape, work);
  };
  {
    const GatheredRows d_out = all(gradients.all_d_out, gradients.d_out);
    linear_backward_weight(d_out.view, gradients.activated, batch.shape, gradient.at(at_.down), {},
                           fp8(BlockLinear::down), work);
  }
  gradients.activated.reset();
  {
    const ArenaMatrix own = normalize(saved.mid, vector(unit, at_.norm2, hidden_), {}, work);
    const GatheredRows norm = tensor_.gather(own, batch.shape, work);
    linear_backward_weight(saved.gate_up, norm.view, batch.shape, gradient.at(at_.gate_up), {},
                           fp8(BlockLinear::gate_up), work);
  }
  {
    const GatheredRows d_mid = all(gradients.all_d_mid, gradients.d_mid);
    linear_backward_weight(d_mid.view, saved.attention, batch.shape, gradient.at(at_.o), {},
                           fp8(BlockLinear::o), work);
  }
  fold_norms(batch, unit, saved, gradients, work);
  const ArenaMatrix own = normalize(saved.x, vector(unit, at_.norm1, hidden_), {}, work);
  const GatheredRows norm = tensor_.gather(own, batch.shape, work);
  linear_backward_weight(gradients.d_qkv, norm.view, batch.shape, gradient.at(at_.qkv),
                         bias_ ? gradient.at(at_.qkv_bias) : GradientView{}, fp8(BlockLinear::qkv), work);
}

}  // namespace cartan::model
