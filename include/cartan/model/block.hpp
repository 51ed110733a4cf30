// One transformer block: pre-norm attention and SwiGLU with residuals, as forward, dgrad and wgrad. Nothing
// is differentiated automatically, so the lifetime of every buffer is known.
//   mid = x + O attention(rope(Q n1), rope(K n1), V n1),  n1 = rmsnorm(x)
//   out = mid + D (silu(G n2) * U n2),                     n2 = rmsnorm(mid)
// Source: Touvron et al. 2023, arXiv:2302.13971; grouped queries: Ainslie et al. 2023, arXiv:2305.13245.
#pragma once

#include <span>

#include "cartan/device/device.hpp"
#include "cartan/model/config.hpp"
#include "cartan/model/parameters.hpp"

namespace cartan::model {

/// Inputs of a micro-batch in device memory, each with shape.tokens() entries. Positions travel with the
/// tokens.
struct BatchView {
  device::SequenceShape shape;
  std::span<const std::int32_t> tokens;
  std::span<const std::int32_t> targets;  ///< < 0: no loss here; empty where only logits are wanted
  std::span<const std::int32_t> positions;
  std::span<const std::int32_t>
      document_start;  ///< first token of the same document, as index into the sequence
};

/// A unit's parameters in the dtype of computing, and where its gradients go.
struct UnitView {
  const void* data = nullptr;
  DType dtype = DType::f32;
  device::GradientView gradient;
  device::GradientView matrix_gradient;  ///< of the head only: where the gradient of its [V, D] matrix goes
};

/// Cosines and sines of all positions, fp32 [positions, head_dim / 2].
struct RopeTable {
  device::Buffer buffer;
  device::ConstMatrix cosines, sines;
};
/// Computed in double. With `llama3` scaling frequencies are divided by `factor` below low_freq_factor turns
/// over the original length, kept above high_freq_factor, blended between (Llama 3 release, 2024).
RopeTable make_rope_table(const ModelConfig& config, Index positions, device::Device& device);
std::vector<double> rope_frequencies(const ModelConfig& config);

/// What forward keeps for the backward pass of one block. Rows are tokens of the micro-batch.
struct BlockActivations {
  device::Matrix x;         ///< [T, D] input, owned by whoever made it
  device::Vector inv_rms1;  ///< fp32 [T]
  device::Matrix qkv;       ///< [T, (H + 2 K) C]; q and k rotated, or raw where they are normalized
  device::Matrix qk;        ///< only with qk_norm: [T, (H + K) C], normalized and rotated
  device::Vector inv_rms_q, inv_rms_k;
  device::Matrix attention;  ///< [T, H C]
  device::Vector log_sum_exp;
  device::Matrix mid;  ///< [T, D]; with gate_up it may be shared by blocks that compute both again
  device::Vector inv_rms2;
  device::Matrix gate_up;  ///< [T, 2 F]; holds its own gradient after the dgrad
};

/// Gradients that the dgrad leaves for the wgrad, and scratch; one set serves all blocks where wgrad follows
/// dgrad at once.
struct BlockWorkspace {
  device::Matrix norm;         ///< [T, D] a normalized input, recomputed
  device::Matrix activated;    ///< [T, F] silu(gate) * up
  device::Matrix d_norm;       ///< [T, D]
  device::Matrix d_out;        ///< [T, D] gradient of the block's output, set by the caller
  device::Matrix d_mid;        ///< [T, D]
  device::Matrix d_attention;  ///< [T, H C]
  device::Matrix d_qkv;        ///< [T, (H + 2 K) C]
};

class Block {
 public:
  Block(const ModelConfig& config, const UnitSpec& unit);

  /// out [T, D] = block(saved.x). Fills the rest of `saved`; inv_rms vectors and log_sum_exp may be absent
  /// where no backward follows.
  void forward(const BatchView& batch, const UnitView& unit, const RopeTable& rope, BlockActivations& saved,
               BlockWorkspace& work, device::Matrix out, device::Ops& ops, device::Stream& stream) const;
  /// From work.d_out to dx [T, D]; dx must not be work.d_out or work.d_mid. Gradients of norm weights are
  /// folded here.
  void backward_input(const BatchView& batch, const UnitView& unit, const RopeTable& rope,
                      BlockActivations& saved, BlockWorkspace& work, device::Matrix dx, device::Ops& ops,
                      device::Stream& stream) const;
  /// Folds the gradients of all matrices and biases. Call after backward_input with the same arguments.
  void backward_weight(const BatchView& batch, const UnitView& unit, BlockActivations& saved,
                       BlockWorkspace& work, device::Ops& ops, device::Stream& stream) const;

  /// saved.mid, inv_rms2 and gate_up from saved.x and saved.attention: a part of forward, and what the
  /// backward pass repeats where these were not kept.
  void compute_mlp_input(const BatchView& batch, const UnitView& unit, BlockActivations& saved,
                         BlockWorkspace& work, device::Ops& ops, device::Stream& stream) const;

  /// Decoding with a cache: x [S * n, D] are the newest n tokens of each sequence. Their keys and values are
  /// appended to the cache
  /// ([S * capacity, K C] each, `cached` rows of each sequence are filled), then they attend to everything in
  /// it. One sequence at a time where n > 1.
  void decode(const BatchView& batch, const UnitView& unit, const RopeTable& rope, BlockActivations& saved,
              BlockWorkspace& work, device::Matrix cache_k, device::Matrix cache_v, Index cached,
              device::Matrix out, device::Ops& ops, device::Stream& stream) const;

 private:
  struct Offsets {
    Index norm1 = 0, qkv = 0, qkv_bias = 0, q_norm = 0, k_norm = 0, o = 0, norm2 = 0, gate_up = 0, down = 0;
  };
  void project(const BatchView& batch, const UnitView& unit, const RopeTable& rope, BlockActivations& saved,
               BlockWorkspace& work, device::Ops& ops, device::Stream& stream) const;
  void finish(const BatchView& batch, const UnitView& unit, BlockActivations& saved, BlockWorkspace& work,
              device::Matrix out, device::Ops& ops, device::Stream& stream) const;
  device::ConstMatrix matrix(const UnitView& unit, Index offset, Index rows, Index cols) const;
  device::ConstVector vector(const UnitView& unit, Index offset, Index size) const;
  device::ConstMatrix rotated_q(const BlockActivations& saved) const;
  device::ConstMatrix rotated_k(const BlockActivations& saved) const;
  device::ConstMatrix values(const BlockActivations& saved) const;
  device::AttentionShape attention_shape(device::SequenceShape shape) const;

  Index hidden_, heads_, kv_heads_, head_dim_, ffn_;
  float eps_;
  bool bias_, qk_norm_;
  Offsets at_;
};

}  // namespace cartan::model
