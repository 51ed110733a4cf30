// The description of a decoder of the Llama family (Llama-2/3, Mistral, Qwen2, Qwen3, Phi-3): every number
// that shapes it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cartan/core/error.hpp"
#include "cartan/core/json_fwd.hpp"
#include "cartan/core/types.hpp"

namespace cartan::model {

/// How rotary frequencies are stretched for contexts longer than the original one.
struct RopeScaling {
  std::string kind = "none";      ///< none | linear | dynamic | llama3 | yarn | longrope
  double factor = 8.0;            ///< all but longrope
  double low_freq_factor = 1.0;   ///< llama3
  double high_freq_factor = 4.0;  ///< llama3
  Index original_length = 8192;   ///< trained before stretching: all but linear
  double attention_factor =
      0;                  ///< yarn, longrope: cosines and sines are multiplied by it; 0: from the lengths
  double beta_fast = 32;  ///< yarn: more turns than this in the original length are left alone
  double beta_slow = 1;   ///< yarn: fewer turns than this are stretched in full
  std::vector<double> short_factors,
      long_factors;  ///< longrope: of each pair, up to the original length and beyond
};

inline constexpr Index kMostLayers = Index{1} << 16;

/// Low-rank adapters beside linear layers, which alone are trained: y = W x + alpha / rank * B A dropout(x)
/// with A [rank, K] and B [N, rank]. Source: Hu et al. 2021, arXiv:2106.09685.
struct LoraConfig {
  Index rank = 0;      ///< 0: no adapters
  double alpha = 16;   ///< their sum is multiplied by alpha / rank
  double dropout = 0;  ///< share of the inputs of A that is zero in a training step
  std::vector<std::string> targets{"q_proj", "v_proj"};  ///< patterns of linear layers (adapters.hpp)
  std::string layers = "all";                            ///< all, or numbers from 0 as in 0-3,7
  std::string from;  ///< a folder in PEFT's layout that their first values come from; not used afterwards

  double scale() const { return alpha / static_cast<double>(rank); }
};

/// Zero means "derive": kv_heads = heads, head_dim = hidden / heads, vocab = the tokenizer's size.
struct ModelConfig {
  std::string preset;  ///< where the other values came from, for people; not used afterwards
  std::string from;    ///< likewise: the folder or checkpoint that parameters come from
  std::string
      family;  ///< llama | mistral | qwen2 | qwen3 | phi3: what it is called when exported; empty: what fits
  Index hidden = 256;
  Index layers = 4;
  Index heads = 4;
  Index kv_heads = 0;
  Index head_dim = 0;
  Index rotary_dim = 0;  ///< channels of a head that turn; 0: all
  Index ffn = 688;
  Index vocab = 0;
  bool tied = false;
  bool qkv_bias = false;              ///< biases on q, k and v (Qwen2)
  bool qk_norm = false;               ///< RMS norm of each head of q and k before rotation (Qwen3)
  Index window = 0;                   ///< keys that a query sees, itself included; 0: all before it
  std::string window_layers = "all";  ///< in which layers: all, or numbers from 0 as in 0-3,7
  Index max_length = 0;  ///< positions it is made for: exported, and longrope's stretching; 0: not known
  double rope_theta = 10000.0;
  double norm_eps = 1e-5;
  double init_std = 0.02;
  RopeScaling rope_scaling;
  LoraConfig lora;
  std::vector<std::string>
      train_only;  ///< patterns of the parameters that are trained; none: all, or adapters

  /// Fills in what is zero, given the tokenizer's size.
  void derive(Index tokenizer_vocab);
  /// Channels of a head that turn with the position.
  Index turning_channels() const { return rotary_dim > 0 ? rotary_dim : head_dim; }
  /// Which layers see a window only. Throws ConfigError for a wrong list.
  std::vector<bool> windowed_layers() const;
};

/// Adds every problem of a derived configuration; keys are named as the user writes them.
void check(const ModelConfig& config, Problems& problems);

/// Names for model.family and model.rope-scaling.
std::vector<std::string> family_names();
std::vector<std::string> rope_scaling_names();
/// Names for model.preset. Throws ConfigError with the nearest name for an unknown one.
std::vector<std::string> preset_names();
ModelConfig preset(const std::string& name);

/// For checkpoints: everything that the shape and the mathematics depend on.
Json to_json(const ModelConfig& config);
/// Throws DataError that names `where` and the missing or wrong entry.
ModelConfig model_config_from_json(const Json& json, const std::string& where);

/// Model FLOPs of one token at sequence length `length`, forward and backward: 6 per weight that takes part
/// in a product, plus 6 * length * heads * head_dim a layer for causal attention (12 without the causal
/// discount). A weight that is not trained has 4; in front of the first trained unit all is a third.
struct FlopsPerToken {
  double causal = 0, full = 0;
};
FlopsPerToken flops_per_token(const ModelConfig& config, Index length);

/// All parameters, adapters too; a tied matrix counts once.
Index parameter_count(const ModelConfig& config);
/// Those that are trained.
Index trained_parameter_count(const ModelConfig& config);

}  // namespace cartan::model
