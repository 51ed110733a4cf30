// Which parameters a training changes: adapters of linear layers (LoRA), or those that patterns name.
//
// A pattern is that of a shell (*, ?, [...]; fnmatch(3)) and names what it matches as a whole, or behind a
// dot: q_proj and *.self_attn.q_proj both name model.layers.0.self_attn.q_proj.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cartan/model/config.hpp"

namespace cartan::model {

/// The linear layers of a block that can have adapters, with the folder of their names.
inline constexpr std::string_view kAdaptable[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                                  "self_attn.o_proj", "mlp.gate_proj",    "mlp.up_proj",
                                                  "mlp.down_proj"};
/// In lora.targets: all of them.
inline constexpr std::string_view kAllLinear = "all-linear";

/// "model.layers.3.self_attn.q_proj".
std::string linear_name(Index layer, std::string_view projection);
/// Names of the adapter's two matrices beside the layer's own weight.
std::string adapter_a(std::string_view linear);
std::string adapter_b(std::string_view linear);

bool is_adapter(std::string_view parameter);

/// Whether the linear layer of this name has an adapter.
bool has_adapter(const ModelConfig& config, Index layer, std::string_view linear);
/// Whether a training changes the parameter: an adapter, what train.only names, or, without either, any.
bool is_trained(const ModelConfig& config, const std::string& parameter);
/// Whether it leaves any parameter as it is.
bool has_frozen(const ModelConfig& config);
/// The same model without adapters, all of it trained.
ModelConfig without_adapters(ModelConfig config);

/// Adds what is wrong with lora.* and train.only, of a model whose sizes are right.
void check_trained(const ModelConfig& config, Problems& problems);

}  // namespace cartan::model
