// Forward, dgrad and wgrad of a transformer block over the table of operations.
#include "cartan/model/block.hpp"

#include <cmath>

namespace cartan::model {

using device::ConstMatrix;
using device::ConstVector;
using device::GradientView;
using device::Matrix;
using device::Ops;
using device::Stream;

Block::Block(const ModelConfig& config, const UnitSpec& unit)
    : hidden_(config.hidden),
      heads_(config.heads),
      kv_heads_(config.kv_heads),
      head_dim_(config.head_dim),
      ffn_(config.ffn),
      eps_(static_cast<float>(config.norm_eps)),
      bias_(config.qkv_bias),
      qk_norm_(config.qk_norm) {
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

device::AttentionShape Block::attention_shape(device::SequenceShape shape) const {
  return {shape.sequences,
          shape.length,
          shape.length,
          heads_,
          kv_heads_,
          head_dim_,
          static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim_)))};
}

void Block::project(const BatchView& batch, const UnitView& unit, const RopeTable& rope,
                    BlockActivations& saved, BlockWorkspace& work, Ops& ops, Stream& stream) const {
  const Index q_width = heads_ * head_dim_, k_width = kv_heads_ * head_dim_;
  ops.rmsnorm_forward(saved.x, vector(unit, at_.norm1, hidden_), eps_, work.norm, saved.inv_rms1, stream);
  const ConstVector bias = bias_ ? vector(unit, at_.qkv_bias, q_width + 2 * k_width) : ConstVector{};
  ops.linear_forward(work.norm, matrix(unit, at_.qkv, q_width + 2 * k_width, hidden_), bias, saved.qkv, false,
                     batch.shape, stream);
  const Matrix rotated = (qk_norm_ ? saved.qk : saved.qkv).col_block(0, q_width + k_width);
  if (qk_norm_) {
    ops.rmsnorm_forward(saved.qkv.col_block(0, q_width), vector(unit, at_.q_norm, head_dim_), eps_,
                        rotated.col_block(0, q_width), saved.inv_rms_q, stream);
    ops.rmsnorm_forward(saved.qkv.col_block(q_width, k_width), vector(unit, at_.k_norm, head_dim_), eps_,
                        rotated.col_block(q_width, k_width), saved.inv_rms_k, stream);
  }
  ops.rope(rotated, head_dim_, batch.positions, rope.cosines, rope.sines, false, stream);
}

void Block::finish(const BatchView& batch, const UnitView& unit, BlockActivations& saved,
                   BlockWorkspace& work, Matrix out, Ops& ops, Stream& stream) const {
  compute_mlp_input(batch, unit, saved, work, ops, stream);
  ops.swiglu_forward(saved.gate_up, work.activated, stream);
  ops.copy(saved.mid, out, stream);
  ops.linear_forward(work.activated, matrix(unit, at_.down, hidden_, ffn_), {}, out, true, batch.shape,
                     stream);
}

void Block::compute_mlp_input(const BatchView& batch, const UnitView& unit, BlockActivations& saved,
                              BlockWorkspace& work, Ops& ops, Stream& stream) const {
  ops.copy(saved.x, saved.mid, stream);
  ops.linear_forward(saved.attention, matrix(unit, at_.o, hidden_, heads_ * head_dim_), {}, saved.mid, true,
                     batch.shape, stream);
  ops.rmsnorm_forward(saved.mid, vector(unit, at_.norm2, hidden_), eps_, work.norm, saved.inv_rms2, stream);
  ops.linear_forward(work.norm, matrix(unit, at_.gate_up, 2 * ffn_, hidden_), {}, saved.gate_up, false,
                     batch.shape, stream);
}

void Block::forward(const BatchView& batch, const UnitView& unit, const RopeTable& rope,
                    BlockActivations& saved, BlockWorkspace& work, Matrix out, Ops& ops,
                    Stream& stream) const {
  project(batch, unit, rope, saved, work, ops, stream);
  ops.attention_forward(attention_shape(batch.shape), rotated_q(saved), rotated_k(saved), values(saved),
                        batch.document_start, saved.attention, saved.log_sum_exp, stream);
  finish(batch, unit, saved, work, out, ops, stream);
}

void Block::decode(const BatchView& batch, const UnitView& unit, const RopeTable& rope,
                   BlockActivations& saved, BlockWorkspace& work, Matrix cache_k, Matrix cache_v,
                   Index cached, Matrix out, Ops& ops, Stream& stream) const {
  CARTAN_ASSERT(batch.shape.sequences == 1);
  const Index fresh = batch.shape.length;
  project(batch, unit, rope, saved, work, ops, stream);
  ops.copy(rotated_k(saved), cache_k.row_block(cached, fresh), stream);
  ops.copy(values(saved), cache_v.row_block(cached, fresh), stream);
  device::AttentionShape shape = attention_shape(batch.shape);
  shape.k_length = cached + fresh;
  shape.q_first = cached;
  ops.attention_forward(shape, rotated_q(saved), cache_k.row_block(0, shape.k_length),
                        cache_v.row_block(0, shape.k_length), batch.document_start, saved.attention, {},
                        stream);
  finish(batch, unit, saved, work, out, ops, stream);
}

void Block::backward_input(const BatchView& batch, const UnitView& unit, const RopeTable& rope,
                           BlockActivations& saved, BlockWorkspace& work, Matrix dx, Ops& ops,
                           Stream& stream) const {
  const Index q_width = heads_ * head_dim_, k_width = kv_heads_ * head_dim_;
  const GradientView& gradient = unit.gradient;
  // MLP: the gradient of gate_up replaces gate_up, and `activated` ends as the recomputed input of the down
  // projection.
  ops.linear_backward_input(work.d_out, matrix(unit, at_.down, hidden_, ffn_), work.activated, false,
                            batch.shape, stream);
  ops.swiglu_backward(saved.gate_up, work.activated, saved.gate_up, work.activated, stream);
  ops.linear_backward_input(saved.gate_up, matrix(unit, at_.gate_up, 2 * ffn_, hidden_), work.d_norm, false,
                            batch.shape, stream);
  ops.copy(work.d_out, work.d_mid, stream);
  ops.rmsnorm_backward(saved.mid, vector(unit, at_.norm2, hidden_), saved.inv_rms2, work.d_norm, work.d_mid,
                       true, batch.shape, gradient.at(at_.norm2), stream);
  // Attention.
  ops.linear_backward_input(work.d_mid, matrix(unit, at_.o, hidden_, q_width), work.d_attention, false,
                            batch.shape, stream);
  const Matrix dq = work.d_qkv.col_block(0, q_width), dk = work.d_qkv.col_block(q_width, k_width),
               dv = work.d_qkv.col_block(q_width + k_width, k_width);
  ops.attention_backward(attention_shape(batch.shape), rotated_q(saved), rotated_k(saved), values(saved),
                         saved.attention, saved.log_sum_exp, batch.document_start, work.d_attention, dq,
                         false, dk, dv, false, stream);
  ops.rope(work.d_qkv.col_block(0, q_width + k_width), head_dim_, batch.positions, rope.cosines, rope.sines,
           true, stream);
  if (qk_norm_) {
    ops.rmsnorm_backward(saved.qkv.col_block(0, q_width), vector(unit, at_.q_norm, head_dim_),
                         saved.inv_rms_q, dq, dq, false, batch.shape, gradient.at(at_.q_norm), stream);
    ops.rmsnorm_backward(saved.qkv.col_block(q_width, k_width), vector(unit, at_.k_norm, head_dim_),
                         saved.inv_rms_k, dk, dk, false, batch.shape, gradient.at(at_.k_norm), stream);
  }
  ops.linear_backward_input(work.d_qkv, matrix(unit, at_.qkv, q_width + 2 * k_width, hidden_), work.d_norm,
                            false, batch.shape, stream);
  ops.copy(work.d_mid, dx, stream);
  ops.rmsnorm_backward(saved.x, vector(unit, at_.norm1, hidden_), saved.inv_rms1, work.d_norm, dx, true,
                       batch.shape, gradient.at(at_.norm1), stream);
}

void Block::backward_weight(const BatchView& batch, const UnitView& unit, BlockActivations& saved,
                            BlockWorkspace& work, Ops& ops, Stream& stream) const {
  const GradientView& gradient = unit.gradient;
  ops.linear_backward_weight(work.d_out, work.activated, batch.shape, gradient.at(at_.down), {}, stream);
  ops.rmsnorm_forward(saved.mid, vector(unit, at_.norm2, hidden_), eps_, work.norm, {}, stream);
  ops.linear_backward_weight(saved.gate_up, work.norm, batch.shape, gradient.at(at_.gate_up), {}, stream);
  ops.linear_backward_weight(work.d_mid, saved.attention, batch.shape, gradient.at(at_.o), {}, stream);
  ops.rmsnorm_forward(saved.x, vector(unit, at_.norm1, hidden_), eps_, work.norm, {}, stream);
  ops.linear_backward_weight(work.d_qkv, work.norm, batch.shape, gradient.at(at_.qkv),
                             bias_ ? gradient.at(at_.qkv_bias) : GradientView{}, stream);
}

}  // namespace cartan::model
