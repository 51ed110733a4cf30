// One transformer block: pre-norm attention and SwiGLU with residuals, as forward, dgrad and wgrad. Nothing
// is differentiated automatically, so the lifetime of every buffer is known.
//   mid = x + O attention(rope(Q n1), rope(K n1), V n1),  n1 = rmsnorm(x)
//   out = mid + D (silu(G n2) * U n2),                     n2 = rmsnorm(mid)
// Source: Touvron et al. 2023, arXiv:2302.13971; grouped queries: Ainslie et al. 2023, arXiv:2305.13245.
#pragma once

#include <array>
#include <span>

#include "cartan/device/device.hpp"
#include "cartan/model/config.hpp"
#include "cartan/model/context_group.hpp"
#include "cartan/model/linear.hpp"
#include "cartan/model/parameters.hpp"
#include "cartan/model/tensor_group.hpp"

namespace cartan::model {

/// Inputs of a micro-batch in device memory, each with shape.tokens() entries: the rows of this rank of
/// context parallelism. Positions travel with the tokens.
struct BatchView {
  device::SequenceShape shape;
  std::span<const std::int32_t> tokens;
  std::span<const std::int32_t> targets;  ///< < 0: no loss here; empty where only logits are wanted
  std::span<const std::int32_t> positions;
  std::span<const std::int32_t>
      document_start;  ///< first token of the same document, as index into the whole sequence
  std::span<const std::int32_t> all_document_start;  ///< of all rows of the sequences, where they are cut
  /// The same for layers that see a window: the first token of the document that is not too far away. Empty
  /// where no layer does.
  std::span<const std::int32_t> window_start, all_window_start;
  DropoutRows dropout{};
};

/// Cosines and sines of all positions, fp32 [positions, rotary_dim / 2].
struct RopeTable {
  device::Buffer buffer;
  device::ConstMatrix cosines, sines;
};
/// For sequences of `length` tokens (0: as many as there are positions), which dynamic and longrope go by.
/// Computed in double, times rope_magnitude(), rounded to `rounding` (fp32, bf16 or fp16).
RopeTable make_rope_table(const ModelConfig& config, Index positions, device::Device& device,
                          DType rounding = DType::f32, Index length = 0);
/// Radians a position, of each pair of channels, in a sequence of `length` tokens.
///   linear    all divided by `factor`                                  (Chen et al. 2023, arXiv:2306.15595)
///   dynamic   the base grows with the length beyond the original one
///   llama3    divided by `factor` below low_freq_factor turns over the original length, kept above
///             high_freq_factor, blended between                        (Llama 3 release, 2024)
///   yarn      likewise between beta_slow and beta_fast, on a ramp over the pairs
///                                                                      (Peng et al. 2023, arXiv:2309.00071)
///   longrope  each divided by its own factor, one list up to the original length and one beyond
///                                                                      (Ding et al. 2024, arXiv:2402.13753)
std::vector<double> rope_frequencies(const ModelConfig& config, Index length);
/// What cosines and sines are multiplied by: 1 but for yarn and longrope.
double rope_magnitude(const ModelConfig& config);
/// Whether that is derived from ModelConfig::max_length.
bool rope_magnitude_follows_length(const ModelConfig& config);
/// Whether a longer sequence turns all its positions otherwise, so that keys cannot be kept.
bool rope_depends_on_length(const ModelConfig& config);

/// What forward keeps for the backward pass of one block. T: rows of the micro-batch; R: those of them that
/// this rank of tensor parallelism owns; H, K, F: its heads, key/value heads and feed-forward columns.
struct BlockActivations {
  device::ArenaMatrix x;         ///< [R, D] input, set by the caller
  device::ArenaVector inv_rms1;  ///< fp32 [R]
  device::ArenaMatrix qkv;       ///< [T, (H + 2 K) C]; q and k rotated, or raw where they are normalized
  device::ArenaMatrix qk;        ///< only with qk_norm: [T, (H + K) C], normalized and rotated
  device::ArenaVector inv_rms_q, inv_rms_k;
  device::ArenaMatrix attention;  ///< [T, H C]
  device::ArenaVector log_sum_exp;
  device::ArenaMatrix mid;  ///< [R, D]
  device::ArenaVector inv_rms2;
  device::ArenaMatrix gate_up;  ///< [T, 2 F]; holds its own gradient after the dgrad
};

/// Where the matrices of BlockActivations are while they are outside of the device's memory.
struct OffloadedActivations {
  std::array<device::ArenaPiece, 6> pieces;
  device::Event moved;  ///< in again
  bool is_away = false;
};

/// What the backward pass computes again.
struct Recompute {
  bool attention = false;  ///< q, k, v and the attention's output
  bool mlp = false;        ///< the residual in the middle, gate and up
};

/// What the dgrad of a block leaves for its wgrad.
struct BlockGradients {
  device::ArenaMatrix d_out;                   ///< [R, D], set by the caller: gradient of the block's output
  device::ArenaMatrix activated;               ///< [T, F] silu(gate) * up
  device::ArenaMatrix d_mid;                   ///< [R, D]
  device::ArenaMatrix d_qkv;                   ///< [T, (H + 2 K) C]
  GatheredRows all_d_out, all_d_mid;           ///< [T, D], where the wgrad follows at once; else
  device::ArenaMatrix d_norm1, d_norm2, d_qk;  ///< gradients of what the norms gave
};

/// A text that goes on, and where its keys and values are kept: the ranks of a context group have a run of
/// its positions each.
struct CachedText {
  Index cached = 0;  ///< its tokens before the newest ones
  LeafRange kept;    ///< positions whose keys and values this rank keeps
  Index row = 0;     ///< of the caches, of the first of these
};

class Block {
 public:
  /// The scales of a block's linear layers, by BlockLinear.
  using Fp8Linears = std::array<Fp8Linear, kBlockLinears>;

  /// `config` is that of the whole model, `unit` has the parts of the group's slice. With `fp8` products are
  /// made of 8-bit codes.
  Block(const ModelConfig& config, const UnitSpec& unit, const TensorGroup& tensor,
        const ContextGroup& context, const Fp8Linears& fp8 = {});

  /// out [R, D] = block(saved.x). Fills the rest of `saved` (with `keeps_statistics` also what only a
  /// backward pass needs).
  void forward(const BatchView& batch, const UnitView& unit, const RopeTable& rope, BlockActivations& saved,
               device::Matrix out, bool keeps_statistics, const Workplace& work) const;
  /// Gives back what the backward pass is going to compute again.
  static void forget(BlockActivations& saved, Recompute what);
  /// Computes that again.
  void recompute(const BatchView& batch, const UnitView& unit, const RopeTable& rope, BlockActivations& saved,
                 Recompute what, const Workplace& work) const;
  /// From gradients.d_out to the gradient of the input [R, D], which is left away where nobody wants it.
  /// `joint`: the wgrad follows at once, so gathered rows stay and the gradients of norm weights are folded
  /// here.
  device::ArenaMatrix backward_input(const BatchView& batch, const UnitView& unit, const RopeTable& rope,
                                     BlockActivations& saved, BlockGradients& gradients, bool joint,
                                     bool wants_input, const Workplace& work) const;
  /// Folds the gradients of what is trained: matrices and biases, and the norms where backward_input did not.
  void backward_weight(const BatchView& batch, const UnitView& unit, BlockActivations& saved,
                       BlockGradients& gradients, const Workplace& work) const;

  /// Decoding with a cache: saved.x [S * n, D] are the newest n tokens of each of the S texts, on every rank
  /// (TensorRows::all). Their keys and values go into the caches ([rows of all texts, K C] each), where kept
  /// here, then they attend to everything before them and to themselves. A text's bits do not depend on the
  /// others. Collective.
  void decode(const BatchView& batch, std::span<const CachedText> texts, const UnitView& unit,
              const RopeTable& rope, BlockActivations& saved, device::Matrix cache_k, device::Matrix cache_v,
              device::Matrix out, const Workplace& work) const;

 private:
  /// A norm's weight in the unit.
  struct Norm {
    Index offset = 0;
    bool trained = false;
  };
  void project(const BatchView& batch, const UnitView& unit, const RopeTable& rope, BlockActivations& saved,
               bool keeps_statistics, const Workplace& work) const;
  void attend(const BatchView& batch, BlockActivations& saved, bool keeps_statistics,
              const Workplace& work) const;
  void compute_mlp_input(const BatchView& batch, const UnitView& unit, BlockActivations& saved,
                         bool keeps_statistics, const Workplace& work) const;
  void finish(const BatchView& batch, const UnitView& unit, BlockActivations& saved, device::Matrix out,
              bool keeps_statistics, const Workplace& work) const;
  void fold_norms(const BatchView& batch, const UnitView& unit, const BlockActivations& saved,
                  const BlockGradients& gradients, const Workplace& work) const;
  /// The own rows, normalized. inv_rms may be absent.
  device::ArenaMatrix normalize(device::ConstMatrix x, device::ConstVector weight, device::Vector inv_rms,
                                const Workplace& work) const;
  device::ConstVector weight(const UnitView& unit, const Norm& norm, Index size) const;
  device::ConstMatrix rotated_q(const BlockActivations& saved) const;
  device::ConstMatrix rotated_k(const BlockActivations& saved) const;
  device::ConstMatrix values(const BlockActivations& saved) const;
  AttentionOperands operands(const BatchView& batch, const BlockActivations& saved) const;
  /// The first key that each row sees.
  std::span<const std::int32_t> first_seen(const BatchView& batch) const;
  device::AttentionShape attention_shape(device::SequenceShape shape) const;

  TensorGroup tensor_;
  ContextGroup context_;
  Index hidden_, heads_, kv_heads_, head_dim_, ffn_;
  float eps_;
  bool qk_norm_, windowed_;
  Norm norm1_, norm2_, q_norm_, k_norm_;
  LinearLayer qkv_, o_, gate_up_, down_;
};

}  // namespace cartan::model
