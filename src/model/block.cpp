// Forward, dgrad and wgrad of a transformer block over the table of operations.
#include "cartan/model/block.hpp"

#include <algorithm>
#include <cmath>

#include "cartan/core/narrow.hpp"
#include "cartan/model/adapters.hpp"

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
      qk_norm_(config.qk_norm),
      windowed_(config.windowed_layers()[static_cast<std::size_t>(unit.layer)]) {
  const auto name = [&](const char* last) { return linear_name(unit.layer, last); };
  const auto norm = [&](const char* last) {
    const ParameterSpec& parameter = unit.parameter(name(last));
    return Norm{parameter.offset, parameter.trained};
  };
  const auto linear = [&](const std::vector<std::string>& names, BlockLinear which) {
    return LinearLayer(config, unit, names, fp8[static_cast<std::size_t>(which)]);
  };
  norm1_ = norm("input_layernorm.weight");
  norm2_ = norm("post_attention_layernorm.weight");
  if (qk_norm_) {
    q_norm_ = norm("self_attn.q_norm.weight");
    k_norm_ = norm("self_attn.k_norm.weight");
  }
  qkv_ = linear({name("self_attn.q_proj"), name("self_attn.k_proj"), name("self_attn.v_proj")},
                BlockLinear::qkv);
  o_ = linear({name("self_attn.o_proj")}, BlockLinear::o);
  gate_up_ = linear({name("mlp.gate_proj"), name("mlp.up_proj")}, BlockLinear::gate_up);
  down_ = linear({name("mlp.down_proj")}, BlockLinear::down);
}

ConstVector Block::weight(const UnitView& unit, const Norm& norm, Index size) const {
  return {device::advance(unit.data, unit.dtype, norm.offset), unit.dtype, size};
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
    const ArenaMatrix norm = normalize(saved.x, weight(unit, norm1_, hidden_), saved.inv_rms1, work);
    tensor_.column_split_product(norm, {qkv_, unit, batch.dropout}, saved.qkv, batch.shape, work);
  }
  if (qk_norm_) {
    saved.qk = work.matrix(tokens, q_width + k_width);
    if (keeps_statistics) {
      saved.inv_rms_q = work.arena.vector(DType::f32, tokens * heads_);
      saved.inv_rms_k = work.arena.vector(DType::f32, tokens * kv_heads_);
    }
    ops.rmsnorm_forward(saved.qkv.col_block(0, q_width), weight(unit, q_norm_, head_dim_), eps_,
                        saved.qk.col_block(0, q_width), saved.inv_rms_q, stream);
    ops.rmsnorm_forward(saved.qkv.col_block(q_width, k_width), weight(unit, k_norm_, head_dim_), eps_,
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
  tensor_.row_split_product(saved.attention, {o_, unit, batch.dropout}, saved.x, saved.mid, batch.shape,
                            work);
  if (keeps_statistics) saved.inv_rms2 = work.arena.vector(DType::f32, saved.x.rows);
  saved.gate_up = work.matrix(batch.shape.tokens(), 2 * ffn_);
  const ArenaMatrix norm = normalize(saved.mid, weight(unit, norm2_, hidden_), saved.inv_rms2, work);
  tensor_.column_split_product(norm, {gate_up_, unit, batch.dropout}, saved.gate_up, batch.shape, work);
}

void Block::finish(const BatchView& batch, const UnitView& unit, BlockActivations& saved, Matrix out,
                   bool keeps_statistics, const Workplace& work) const {
  compute_mlp_input(batch, unit, saved, keeps_statistics, work);
  const ArenaMatrix activated = work.matrix(batch.shape.tokens(), ffn_);
  work.ops().swiglu_forward(saved.gate_up, activated, work.stream());
  tensor_.row_split_product(activated, {down_, unit, batch.dropout}, saved.mid, out, batch.shape, work);
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
                                  bool wants_input, const Workplace& work) const {
  Ops& ops = work.ops();
  Stream& stream = work.stream();
  const Index q_width = heads_ * head_dim_, k_width = kv_heads_ * head_dim_, tokens = batch.shape.tokens();
  const SequenceShape own = tensor_.own_rows(batch.shape);
  const auto norm_gradient = [&](const Norm& norm) {
    return joint && norm.trained ? unit.gradient.at(norm.offset) : GradientView{};
  };
  // MLP: the gradient of gate_up replaces gate_up, and `activated` ends as the recomputed input of the down
  // projection.
  gradients.activated = work.matrix(tokens, ffn_);
  gradients.all_d_out = tensor_.output_gradient(gradients.d_out, {down_, unit, batch.dropout},
                                                gradients.activated, batch.shape, work);
  if (!joint || !down_.trains()) gradients.all_d_out = {};
  ops.swiglu_backward(saved.gate_up, gradients.activated, saved.gate_up, gradients.activated, stream);
  if (!down_.trains()) gradients.activated.reset();
  gradients.d_mid = work.matrix(own.tokens(), hidden_);
  {
    ArenaMatrix d_norm =
        tensor_.input_gradient(saved.gate_up, {gate_up_, unit, batch.dropout}, batch.shape, work);
    ops.copy(gradients.d_out, gradients.d_mid, stream);
    ops.rmsnorm_backward(saved.mid, weight(unit, norm2_, hidden_), saved.inv_rms2, d_norm, gradients.d_mid,
                         true, own, norm_gradient(norm2_), stream);
    if (!joint && norm2_.trained) gradients.d_norm2 = std::move(d_norm);
  }
  // Attention.
  gradients.d_qkv = work.matrix(tokens, q_width + 2 * k_width);
  const Matrix dq = gradients.d_qkv.col_block(0, q_width), dk = gradients.d_qkv.col_block(q_width, k_width),
               dv = gradients.d_qkv.col_block(q_width + k_width, k_width);
  {
    const ArenaMatrix d_attention = work.matrix(tokens, q_width);
    gradients.all_d_mid =
        tensor_.output_gradient(gradients.d_mid, {o_, unit, batch.dropout}, d_attention, batch.shape, work);
    if (!joint || !o_.trains()) gradients.all_d_mid = {};
    context_.backward(operands(batch, saved), saved.attention, saved.log_sum_exp, d_attention, dq, dk, dv,
                      work);
  }
  ops.rope(gradients.d_qkv.col_block(0, q_width + k_width), head_dim_, batch.positions, rope.cosines,
           rope.sines, true, stream);
  if (qk_norm_) {
    if (!joint && (q_norm_.trained || k_norm_.trained)) {
      gradients.d_qk = work.matrix(tokens, q_width + k_width);
      ops.copy(gradients.d_qkv.col_block(0, q_width + k_width), gradients.d_qk, stream);
    }
    ops.rmsnorm_backward(saved.qkv.col_block(0, q_width), weight(unit, q_norm_, head_dim_), saved.inv_rms_q,
                         dq, dq, false, batch.shape, norm_gradient(q_norm_), stream);
    ops.rmsnorm_backward(saved.qkv.col_block(q_width, k_width), weight(unit, k_norm_, head_dim_),
                         saved.inv_rms_k, dk, dk, false, batch.shape, norm_gradient(k_norm_), stream);
  }
  if (!wants_input && !norm1_.trained) return {};
  ArenaMatrix d_norm =
      tensor_.input_gradient(gradients.d_qkv, {qkv_, unit, batch.dropout}, batch.shape, work);
  ArenaMatrix dx = work.matrix(own.tokens(), hidden_);
  ops.copy(gradients.d_mid, dx, stream);
  ops.rmsnorm_backward(saved.x, weight(unit, norm1_, hidden_), saved.inv_rms1, d_norm, dx, true, own,
                       norm_gradient(norm1_), stream);
  if (!joint && norm1_.trained) gradients.d_norm1 = std::move(d_norm);
  return dx;
}

void Block::fold_norms(const BatchView& batch, const UnitView& unit, const BlockActivations& saved,
                       const BlockGradients& gradients, const Workplace& work) const {
  const SequenceShape own = tensor_.own_rows(batch.shape);
  // `dy` is absent where the norm is not trained, or its gradient was folded before.
  const auto fold = [&](ConstMatrix x, const Norm& norm, Index width, ConstVector inv_rms, ConstMatrix dy,
                        SequenceShape shape) {
    if (!norm.trained || dy.cols == 0) return;
    work.ops().rmsnorm_backward(x, weight(unit, norm, width), inv_rms, dy, {}, false, shape,
                                unit.gradient.at(norm.offset), work.stream());
  };
  fold(saved.x, norm1_, hidden_, saved.inv_rms1, gradients.d_norm1, own);
  fold(saved.mid, norm2_, hidden_, saved.inv_rms2, gradients.d_norm2, own);
  if (!qk_norm_ || gradients.d_qk.cols == 0) return;
  const Index q_width = heads_ * head_dim_, k_width = kv_heads_ * head_dim_;
  fold(saved.qkv.col_block(0, q_width), q_norm_, head_dim_, saved.inv_rms_q,
       gradients.d_qk.col_block(0, q_width), batch.shape);
  fold(saved.qkv.col_block(q_width, k_width), k_norm_, head_dim_, saved.inv_rms_k,
       gradients.d_qk.col_block(q_width, k_width), batch.shape);
}

void Block::backward_weight(const BatchView& batch, const UnitView& unit, BlockActivations& saved,
                            BlockGradients& gradients, const Workplace& work) const {
  const auto all = [&](GatheredRows& kept, const ArenaMatrix& own) {
    return kept.view.cols > 0 ? std::move(kept) : tensor_.gather(own, batch.shape, work);
  };
  const auto fold = [&](const LinearLayer& layer, ConstMatrix dy, ConstMatrix x) {
    Linear(layer, unit, batch.dropout).backward_weight(dy, x, batch.shape, work);
  };
  // Of a column-split layer, whose input is normalized again.
  const auto fold_normalized = [&](const LinearLayer& layer, ConstMatrix dy, ConstMatrix x,
                                   const Norm& norm) {
    const ArenaMatrix own = normalize(x, weight(unit, norm, hidden_), {}, work);
    const GatheredRows rows = tensor_.gather(own, batch.shape, work);
    fold(layer, dy, rows.view);
  };
  if (down_.trains()) fold(down_, all(gradients.all_d_out, gradients.d_out).view, gradients.activated);
  gradients.all_d_out = {};
  gradients.activated.reset();
  if (gate_up_.trains()) fold_normalized(gate_up_, saved.gate_up, saved.mid, norm2_);
  if (o_.trains()) fold(o_, all(gradients.all_d_mid, gradients.d_mid).view, saved.attention);
  gradients.all_d_mid = {};
  fold_norms(batch, unit, saved, gradients, work);
  if (qkv_.trains()) fold_normalized(qkv_, gradients.d_qkv, saved.x, norm1_);
}

}  // namespace cartan::model
