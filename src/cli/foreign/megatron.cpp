// The arguments of Megatron-LM as JSON, by their names. cartan's models are Llama's family, so what a file
// says of another architecture is refused; what it does not say is listed where Megatron-LM's default is
// another.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "cli/foreign/batch.hpp"
#include "cli/foreign/formats.hpp"
#include "cli/option.hpp"

namespace cartan::cli::foreign {
namespace {

const std::array<SameAs, 12> kSame{{
    {"tensor_model_parallel_size", "mesh.tp"},
    {"pipeline_model_parallel_size", "mesh.pp"},
    {"context_parallel_size", "mesh.cp"},
    {"data_parallel_size", "mesh.dp"},
    {"seq_length", "data.seq"},
    {"train_iters", "run.steps"},
    {"log_interval", "run.log-every"},
    {"save_interval", "checkpoint.every"},
    {"async_save", "checkpoint.async"},
    {"min_lr", "schedule.min-lr"},
    {"save", "run.dir"},
    {"check_weight_hash_across_dp_replicas_interval", "watch.replicas"},
}};

const std::array<SameAs, 11> kModel{{
    {"num_layers", "model.layers"},
    {"hidden_size", "model.hidden"},
    {"num_attention_heads", "model.heads"},
    {"kv_channels", "model.head-dim"},
    {"ffn_hidden_size", "model.ffn"},
    {"vocab_size", "model.vocab"},
    {"rotary_base", "model.rope-theta"},
    {"norm_epsilon", "model.norm-eps"},
    {"init_method_std", "model.init-std"},
    {"qk_layernorm", "model.qk-norm"},
    {"add_qkv_bias", "model.qkv-bias"},
}};

/// What the architecture must be. The last column: what Megatron-LM takes where nothing is said, if that is
/// something else.
struct Shape {
  Fixed fixed;
  const char* by_default;
};
const std::array<Shape, 22> kShapes{{
    {{"swiglu", true, "cartan's feed-forward layers are SwiGLU: set it to true"}, "GELU"},
    {{"normalization", "RMSNorm", "cartan's norms are RMSNorm: use that"}, "LayerNorm"},
    {{"position_embedding_type", "rope", "cartan's positions are rotary: use rope"}, "learned positions"},
    {{"hidden_dropout", 0, "cartan has no dropout: set it to 0"}, "0.1"},
    {{"attention_dropout", 0, "cartan has no dropout: set it to 0"}, "0.1"},
    {{"add_bias_linear", false, "cartan's layers have no biases (add_qkv_bias: on q, k, v): set it to false"},
     nullptr},
    {{"disable_bias_linear", true, "cartan's layers have no biases: set it to true"}, nullptr},
    {{"use_rotary_position_embeddings", true, "cartan's positions are rotary: set it to true"}, nullptr},
    {{"rotary_percent", 1, "cartan rotates whole heads: use 1.0"}, nullptr},
    {{"rotary_interleaved", false, "cartan rotates halves of heads: set it to false"}, nullptr},
    {{"apply_layernorm_1p", false, "norm weights are not shifted: set it to false"}, nullptr},
    {{"layernorm_zero_centered_gamma", false, "norm weights are not shifted: set it to false"}, nullptr},
    {{"apply_residual_connection_post_layernorm", false, "norms stand before the layers: set it to false"},
     nullptr},
    {{"squared_relu", false, "cartan's feed-forward layers are SwiGLU: set it to false"}, nullptr},
    {{"quick_geglu", false, "cartan's feed-forward layers are SwiGLU: set it to false"}, nullptr},
    {{"openai_gelu", false, "cartan's feed-forward layers are SwiGLU: set it to false"}, nullptr},
    {{"multi_latent_attention", false, "cartan has no latent attention: set it to false"}, nullptr},
    {{"init_method_xavier_uniform", false, "initial values are normal: set it to false"}, nullptr},
    {{"attention_output_gate", false, "cartan's attention has no gate: set it to false"}, nullptr},
    {{"fp32_residual_connection", false, "residuals have the type of precision.compute: set it to false"},
     nullptr},
    {{"no_position_embedding", false, "cartan's positions are rotary: set it to false"}, nullptr},
    {{"reset_attention_mask", false, "cartan attends over the whole sample: set it to false"}, nullptr},
}};

/// Without a value these change nothing; with one they do.
constexpr std::array<Tuning, 22> kUnsupported{{
    {"num_experts", "cartan has no experts: remove it"},
    {"mtp_num_layers", "cartan predicts one token: remove it"},
    {"window_size", "cartan attends to all earlier tokens: remove it"},
    {"rampup_batch_size", "batch.global is one number for the whole run: remove it"},
    {"step_batch_size_schedule", "batch.global is one number for the whole run: remove it"},
    {"rotary_seq_len_interpolation_factor", "cartan stretches as Llama 3 does (use_rope_scaling): remove it"},
    {"decoupled_lr", "one rate goes for all parameters: remove it"},
    {"decoupled_min_lr", "one rate goes for all parameters: remove it"},
    {"lr_decay_samples", "cartan counts updates: use lr_decay_iters"},
    {"lr_wsd_decay_samples", "cartan counts updates: use lr_wsd_decay_iters"},
    {"train_samples", "cartan counts updates: use train_iters"},
    {"finetune", "this version does not read checkpoints of Megatron-LM: remove it"},
    {"pretrained_checkpoint", "this version does not read checkpoints of Megatron-LM: remove it"},
    {"iterations_to_skip", "cartan skips no updates: remove it"},
    {"hybrid_layer_pattern", "cartan's layers are all alike: remove it"},
    {"hybrid_override_pattern", "cartan's layers are all alike: remove it"},
    {"spec", "cartan's layers are those of Llama's family: remove it"},
    {"lr_warmup_samples", "cartan counts updates: use lr_warmup_iters"},
    {"eod_mask_loss", "every token counts in the loss: set it to false"},
    {"reset_position_ids", "positions count from the beginning of a sample: set it to false"},
    {"calculate_per_token_loss", nullptr},  // as cartan computes, and so is the other on full samples
    {"logit_softcapping", "cartan does not cap logits: remove it"},
}};

constexpr const char* kLog = "cartan logs to stderr and run.dir/metrics.jsonl";
constexpr const char* kOverlap = "communication always runs beside computing";
constexpr const char* kKernels = "cartan has its own kernels";
constexpr const char* kFiles = "checkpoints of cartan are one HDF5 file for any mesh";
constexpr const char* kTokens = "token files are read as they are; data.tokenizer is for texts";
constexpr const char* kLaunch = "the launcher says this: srun or mpirun";
constexpr const char* kCut = "pipeline.cut has the layers of each stage";

constexpr std::array<Tuning, 62> kTuning{{
    {"sequence_parallel", "always so with mesh.tp"},
    {"overlap_grad_reduce", kOverlap},
    {"overlap_param_gather", kOverlap},
    {"overlap_param_gather_with_optimizer_step", kOverlap},
    {"align_grad_reduce", kOverlap},
    {"align_param_gather", kOverlap},
    {"overlap_p2p_communication", kOverlap},
    {"overlap_p2p_comm", kOverlap},
    {"batch_p2p_comm", kOverlap},
    {"batch_p2p_communication", kOverlap},
    {"delay_wgrad_compute", "pipeline.schedule = zero-bubble"},
    {"defer_embedding_wgrad_compute", "pipeline.schedule = zero-bubble"},
    {"use_flash_attn", kKernels},
    {"attention_backend", kKernels},
    {"transformer_impl", kKernels},
    {"gradient_accumulation_fusion", kKernels},
    {"masked_softmax_fusion", kKernels},
    {"bias_swiglu_fusion", kKernels},
    {"bias_gelu_fusion", kKernels},
    {"bias_dropout_fusion", kKernels},
    {"apply_rope_fusion", kKernels},
    {"rope_fusion", kKernels},
    {"persist_layer_norm", kKernels},
    {"cross_entropy_loss_fusion", kKernels},
    {"cross_entropy_fusion_impl", kKernels},
    {"attention_softmax_in_fp32", "always so"},
    {"apply_query_key_layer_scaling", "the same mathematics"},
    {"accumulate_allreduce_grads_in_fp32", "always so"},
    {"use_cpu_initialization", "initial values are the same on every device and mesh"},
    {"perform_initialization", "always so"},
    {"enable_cuda_graph", "run.graphs"},
    {"cuda_graph_impl", "run.graphs"},
    {"max_position_embeddings", "rotary positions need no table of a given length"},
    {"make_vocab_size_divisible_by", "the vocabulary is not padded"},
    {"padded_vocab_size", "the vocabulary is not padded"},
    {"tokenizer_type", kTokens},
    {"tokenizer_model", kTokens},
    {"vocab_file", kTokens},
    {"merge_file", kTokens},
    {"vocab_extra_ids", kTokens},
    {"data_cache_path", "there is no index to cache"},
    {"dataloader_type", "samples come in one order for any mesh"},
    {"num_workers", "samples are read by one thread ahead of the step"},
    {"mmap_bin_files", "token files are mapped"},
    {"create_attention_mask_in_dataloader", kKernels},
    {"test_data_path", "nothing is tested at the end: cartan eval"},
    {"override_opt_param_scheduler", "the schedule is always that of the configuration"},
    {"use_checkpoint_opt_param_scheduler", "the schedule is always that of the configuration"},
    {"distributed_backend", "MPI, and NCCL with run.device = cuda"},
    {"distributed_timeout_minutes", "watch.timeout, in seconds, with run.device = cuda"},
    {"local_rank", kLaunch},
    {"rank", kLaunch},
    {"world_size", kLaunch},
    {"decoder_first_pipeline_num_layers", kCut},
    {"decoder_last_pipeline_num_layers", kCut},
    {"account_for_embedding_in_pipeline_split", kCut},
    {"account_for_loss_in_pipeline_split", kCut},
    {"empty_unused_memory_level", "memory is allocated once, at the start"},
    {"manual_gc", "nothing is collected"},
    {"manual_gc_interval", "nothing is collected"},
    {"ddp_average_in_collective", "gradients are summed and divided once"},
    {"no_save_optim", "checkpoints are complete"},
}};

/// Families of names.
constexpr std::array<Tuning, 16> kPrefixes{{
    {"log_", kLog},
    {"timing_", kLog},
    {"tensorboard_", kLog},
    {"wandb_", kLog},
    {"profile", kLog},
    {"ckpt_", kFiles},
    {"dist_ckpt", kFiles},
    {"moe_", "cartan has no experts"},
    {"exit_", "a signal, or a file STOP in run.dir, ends a run after a checkpoint"},
    {"inference_", "cartan generate is a command of its own"},
    {"tp_comm_", "tensor.chunks"},
    {"rerun_", "losses that are not finite end the run and name the tensor"},
    {"bert_", "cartan has decoders only"},
    {"encoder_", "cartan has decoders only"},
    {"retro_", "cartan has decoders only"},
    {"vision_", "cartan has decoders only"},
}};

/// Values that mean "not used".
bool is_nothing(const Json& value) {
  return value == 0 || value == false || (value.is_structured() && value.empty()) || value == "";
}

void take_model(Fields& top, const Json& whole, Translation& to) {
  const bool has_model = whole.contains("num_layers") || whole.contains("hidden_size");
  top.apply(kModel);
  for (const auto& [fixed, by_default] : kShapes) {
    top.apply(std::span(&fixed, 1));
    if (has_model && by_default != nullptr && !whole.contains(fixed.name))
      to.differing.push_back(
          {fixed.name, "not said", fmt::format("{} there, {} here", by_default, value_text(fixed.value))});
  }
  const bool has_groups = top.flag("group_query_attention").value_or(true);
  if (top.find("group_query_attention") != nullptr)
    top.confirm("group_query_attention", has_groups ? "model.kv-heads" : "as many key/value heads as heads");
  if (has_groups && !top.take_if_said("num_query_groups", "model.kv-heads") &&
      top.find("group_query_attention") != nullptr)
    to.take_default("model.kv-heads", "1");
  else if (has_groups)
    top.find("num_query_groups");
  else if (top.find("num_query_groups") != nullptr)
    top.ignore("num_query_groups", "group_query_attention is false");
  if (const auto untied = top.flag("untie_embeddings_and_output_weights"))
    top.take("untie_embeddings_and_output_weights", "model.tied", *untied ? "false" : "true");
  if (top.flag("use_rope_scaling").value_or(false)) {
    top.take("use_rope_scaling", "model.rope-scaling", "llama3");
    top.take_or("rope_scaling_factor", "model.rope-factor", "8");
  } else {
    static constexpr std::array<Tuning, 2> off{
        {{"use_rope_scaling", "switched off"}, {"rope_scaling_factor", "use_rope_scaling is not true"}}};
    top.apply(off);
  }
  if (!has_model) return;
  if (!whole.contains("untie_embeddings_and_output_weights")) to.take_default("model.tied", "true");
  const auto hidden = top.whole("hidden_size");
  if (hidden && *hidden < (1 << 30) && top.find("ffn_hidden_size") == nullptr)
    to.take_default("model.ffn", fmt::format("{}", *hidden * 8 / 3 / 64 * 64));
  for (const auto& [name, key, text] : {std::tuple{"norm_epsilon", "model.norm-eps", "1e-05"},
                                        {"rotary_base", "model.rope-theta", "10000"},
                                        {"init_method_std", "model.init-std", "0.02"}})
    if (top.find(name) == nullptr) to.take_default(key, text);
}

void take_precision(Fields& top, Translation& to) {
  const bool bf16 = top.flag("bf16").value_or(false), fp16 = top.flag("fp16").value_or(false);
  if (bf16 && fp16) top.refuse("fp16", "bf16 is true too: set one of them to false");
  if (bf16 || fp16)
    top.take(bf16 ? "bf16" : "fp16", "precision.compute", bf16 ? "bf16" : "fp16");
  else
    to.take_default("precision.compute", "fp32");
  for (const char* name : {"bf16", "fp16"})
    if (top.find(name) != nullptr && !top.flag(name).value_or(true)) top.ignore(name, "switched off");
  const auto power = top.number("initial_loss_scale");
  if (fp16) {
    top.take_or("loss_scale", "precision.loss-scale", "0");
    const double exponent = std::log2(power.value_or(0x1p32));
    if (exponent != std::floor(exponent) || !(exponent >= 0))
      top.refuse("initial_loss_scale", "cartan's first scale is a power of two: use one, 65536 for instance");
    else if (power)
      top.take("initial_loss_scale", "precision.loss-scale-power", fmt::format("{}", exponent));
    else
      to.take_default("precision.loss-scale-power", "32");
    top.take_or("loss_scale_window", "precision.loss-scale-window", "1000");
    top.take_or("hysteresis", "precision.loss-scale-hysteresis", "2");
    top.take_or("min_loss_scale", "precision.loss-scale-min", "1");
  } else {
    constexpr const char* why = "for fp16";
    static constexpr std::array<Tuning, 5> scaling{{{"loss_scale", why},
                                                    {"initial_loss_scale", why},
                                                    {"loss_scale_window", why},
                                                    {"hysteresis", why},
                                                    {"min_loss_scale", why}}};
    top.apply(scaling);
  }
  if (top.flag("grad_reduce_in_bf16").value_or(false))
    top.take("grad_reduce_in_bf16", "precision.reduce", "bf16");
  else if (top.find("grad_reduce_in_bf16") != nullptr)
    top.ignore("grad_reduce_in_bf16", "switched off");
  for (const char* name : {"fp8", "fp8_format"}) {
    const Json* value = top.find(name);
    if (value == nullptr) continue;
    if (is_nothing(*value))
      top.ignore(name, "switched off");
    else if (*value == "hybrid")
      top.take(name, "precision.products", "fp8");
    else
      top.refuse(name, "cartan's 8 bits are e4m3 forward and e5m2 backward: use hybrid");
  }
  top.take_if_said("fp8_margin", "precision.fp8-margin");
  top.take_if_said("fp8_amax_history_len", "precision.fp8-history");
  static const std::array<Fixed, 2> fixed{
      {{"fp8_recipe", "delayed", "cartan's scales follow from earlier steps: use delayed"},
       {"fp8_amax_compute_algo", "max", "a scale follows from the largest of the history: use max"}}};
  top.apply(fixed);
}

void take_optimizer(Fields& top) {
  static const std::array<Fixed, 4> fixed{
      {{"optimizer", "adam", "cartan has AdamW: use adam"},
       {"weight_decay_incr_style", "constant", "the decay is constant: use that"},
       {"decoupled_weight_decay", true, "cartan's decay is decoupled (AdamW): set it to true"},
       {"lr_wsd_decay_style", "linear", "cartan's wsd decays linearly: use linear"}}};
  top.apply(fixed);
  const auto decay = top.number("weight_decay");
  for (const char* name : {"start_weight_decay", "end_weight_decay"}) {
    const auto other = top.number(name);
    if (!other) continue;
    if (*other == decay.value_or(0.01))
      top.ignore(name, "the same as weight_decay");
    else
      top.refuse(name, "the decay is constant: use weight_decay alone");
  }
  top.take_if_said("lr", "optim.lr");
  top.take_or("adam_beta1", "optim.beta1", "0.9");
  top.take_or("adam_beta2", "optim.beta2", "0.999");
  top.take_or("adam_eps", "optim.eps", "1e-08");
  top.take_or("weight_decay", "optim.weight-decay", "0.01");
  top.take_or("clip_grad", "optim.clip", "1");
}

void take_warmup(Fields& top, const std::optional<Index>& length) {
  const auto fraction = top.number("lr_warmup_fraction");
  if (!fraction) {
    top.take_or("lr_warmup_iters", "schedule.warmup", "0");
  } else {
    if (top.find("lr_warmup_iters") != nullptr) top.ignore("lr_warmup_iters", "lr_warmup_fraction is given");
    // 0.07 * 100 is a little more than 7.
    const double product = *fraction * static_cast<double>(length.value_or(0)), updates = std::round(product);
    if (length && std::abs(product - updates) <= 1e-9 * updates)
      top.take("lr_warmup_fraction", "schedule.warmup", fmt::format("{:.0f}", updates));
    else
      top.refuse("lr_warmup_fraction", "no whole number of updates: use lr_warmup_iters");
  }
  top.take_or("lr_warmup_init", "schedule.warmup-begin", "0");
}

void take_schedule(Fields& top, Translation& to) {
  const std::string style = top.text("lr_decay_style").value_or("linear");
  if (top.find("lr_decay_style") == nullptr)
    to.take_default("schedule.kind", "linear");
  else if (style == "constant" || style == "linear" || style == "cosine")
    top.take("lr_decay_style", "schedule.kind", style);
  else if (style == "WSD")
    top.take("lr_decay_style", "schedule.kind", "wsd");
  else
    top.refuse("lr_decay_style", "use constant, linear, cosine or WSD");
  if (style == "WSD" && top.find("lr_wsd_decay_style") == nullptr)
    top.refuse("lr_decay_style",
               "WSD decays exponentially unless lr_wsd_decay_style says linear, which cartan "
               "has: say so");
  const auto steps = top.whole("train_iters"), length = top.whole("lr_decay_iters");
  top.take_if_said("lr_decay_iters", "schedule.length");
  if (style == "WSD")
    top.take_if_said("lr_wsd_decay_iters", "schedule.decay-steps");
  else if (top.find("lr_wsd_decay_iters") != nullptr)
    top.ignore("lr_wsd_decay_iters", "for WSD");
  take_warmup(top, length ? length : steps);
}

void take_sharding(Fields& top) {
  static constexpr std::array<SameAs, 4> strategies{
      {{"no_shard", "0"}, {"optim", "1"}, {"optim_grads", "2"}, {"optim_grads_params", "3"}}};

  bool has_fsdp = false;
  for (const char* name : {"use_megatron_fsdp", "use_custom_fsdp"}) {
    const auto on = top.flag(name);
    if (on) top.ignore(name, *on ? "data_parallel_sharding_strategy says the stage" : "switched off");
    has_fsdp = has_fsdp || on.value_or(false);
  }
  if (const auto strategy = top.text("data_parallel_sharding_strategy")) {
    const SameAs* stage = nullptr;
    for (const SameAs& row : strategies)
      if (*strategy == row.name) stage = &row;
    if (stage == nullptr)
      top.refuse("data_parallel_sharding_strategy", "use no_shard, optim, optim_grads or optim_grads_params");
    else if (has_fsdp)
      top.take("data_parallel_sharding_strategy", "zero.stage", stage->key);
    else
      top.ignore("data_parallel_sharding_strategy", "counts with use_megatron_fsdp only");
  }
  if (top.flag("use_torch_fsdp2").value_or(false))
    top.take("use_torch_fsdp2", "zero.stage", "3");
  else if (top.find("use_torch_fsdp2") != nullptr)
    top.ignore("use_torch_fsdp2", "switched off");
  has_fsdp = has_fsdp || top.flag("use_torch_fsdp2").value_or(false);
  if (const auto on = top.flag("use_distributed_optimizer")) {
    if (*on && !has_fsdp)
      top.take("use_distributed_optimizer", "zero.stage", "1");
    else
      top.ignore("use_distributed_optimizer", *on ? "FSDP shards more" : "switched off");
  }
  if (const auto elements = top.number("ddp_bucket_size"))
    top.take("ddp_bucket_size", "zero.bucket-mb", fmt::format("{}", *elements * 4 / (1 << 20)));
  if (top.flag("optimizer_cpu_offload").value_or(false))
    top.take("optimizer_cpu_offload", "zero.offload", "states");
  else if (top.find("optimizer_cpu_offload") != nullptr)
    top.ignore("optimizer_cpu_offload", "switched off");
}

void take_stages(Fields& top) {
  const auto take_chunks = [&](const char* name, Index chunks) {
    if (chunks == 1) return top.ignore(name, "one part of the model on each stage");
    top.take(name, "pipeline.schedule", "interleaved");
    top.take(name, "pipeline.chunks", fmt::format("{}", chunks));
  };
  if (const auto width = top.whole("num_layers_per_virtual_pipeline_stage")) {
    const Index layers = top.whole("num_layers").value_or(0);
    const Index stages = top.whole("pipeline_model_parallel_size").value_or(1);
    const bool divides =
        *width > 0 && stages > 0 && layers > 0 && layers % stages == 0 && (layers / stages) % *width == 0;
    if (divides)
      take_chunks("num_layers_per_virtual_pipeline_stage", layers / stages / *width);
    else
      top.refuse("num_layers_per_virtual_pipeline_stage",
                 "it must divide num_layers / pipeline_model_parallel_size, which the file must say");
  }
  if (const auto chunks = top.whole("num_virtual_stages_per_pipeline_rank"))
    take_chunks("num_virtual_stages_per_pipeline_rank", *chunks);
  static constexpr std::array<SameAs, 3> exchanges{
      {{"p2p", "ring"}, {"all_gather", "all-gather"}, {"a2a", "all-to-all"}}};
  if (const Json* kind = top.find("cp_comm_type")) {
    const Json first = kind->is_array() && kind->size() == 1 ? (*kind)[0] : *kind;
    const SameAs* exchange = nullptr;
    for (const SameAs& row : exchanges)
      if (first == row.name) exchange = &row;
    if (exchange != nullptr)
      top.take("cp_comm_type", "context.exchange", exchange->key);
    else
      top.ignore("cp_comm_type", "context.exchange has ring, all-gather and all-to-all");
  }
  for (const char* name : {"expert_model_parallel_size", "expert_tensor_parallel_size"}) {
    const auto size = top.whole(name);
    if (size && *size > 1)
      top.refuse(name, "cartan has no experts: remove it");
    else if (size)
      top.ignore(name, "cartan has no experts");
  }
}

void take_recomputation(Fields& top) {
  const auto granularity = top.text("recompute_granularity");
  const bool is_short = top.flag("recompute_activations").value_or(false);
  if (top.find("recompute_activations") != nullptr) {
    if (is_short && !granularity)
      top.take("recompute_activations", "recompute.policy", "attention");
    else
      top.ignore("recompute_activations", "recompute_granularity says it");
  }
  const Json* modules = top.find("recompute_modules");
  const auto has = [&](const char* name) {
    if (modules == nullptr || !modules->is_array()) return false;
    return std::find(modules->begin(), modules->end(), name) != modules->end();
  };
  if (granularity && *granularity == "selective") {
    const bool mlp = has("mlp"), attention = modules == nullptr || has("core_attn");
    const char* policy = mlp && attention ? "block" : mlp ? "mlp" : attention ? "attention" : "none";
    top.take("recompute_granularity", "recompute.policy", policy);
  } else if (granularity && *granularity == "full") {
    top.take("recompute_granularity", "recompute.policy", "block");
  } else if (granularity) {
    top.refuse("recompute_granularity", "use full or selective");
  }
  if (modules != nullptr) top.ignore("recompute_modules", "recompute.policy; norms are always recomputed");

  const auto count = top.whole("recompute_num_layers");
  const bool is_block = top.text("recompute_method").value_or("") == "block";
  if (top.find("recompute_method") != nullptr)
    top.ignore("recompute_method", "each layer keeps its own input; recompute.layers names layers");
  if (!count) return;
  const bool one_stage = top.whole("pipeline_model_parallel_size").value_or(1) == 1;
  if (is_block && one_stage && *count > 0 && granularity && *granularity == "full")
    top.take("recompute_num_layers", "recompute.layers", *count == 1 ? "0" : fmt::format("0-{}", *count - 1));
  else
    top.ignore("recompute_num_layers", "recompute.layers names layers of the whole model: all");
}

/// Text and lists of words, as "0.7 a 0.3 b".
void take_paths(Fields& top, const char* name, const char* key) {
  const Json* value = top.find(name);
  if (value == nullptr) return;
  std::string words;
  for (const Json& word : value->is_array() ? *value : Json::array({*value})) {
    const auto text = scalar_text(word);
    if (!text) return top.refuse(name, "expected prefixes, or weights and prefixes");
    words += (words.empty() ? "" : " ") + *text;
  }
  top.take(name, key, words);
}

void take_data(Fields& top) {
  take_paths(top, "data_path", "data.train");
  take_paths(top, "train_data_path", "data.train");
  take_paths(top, "valid_data_path", "data.valid");
  bool has_validation = top.find("valid_data_path") != nullptr;
  if (const auto split = top.text("split")) {
    const Json parts = Json::parse("[" + *split + "]", nullptr, false);
    const bool is_list = parts.is_array() && !parts.empty() && parts.size() <= 3 &&
                         std::all_of(parts.begin(), parts.end(),
                                     [](const Json& part) { return part.is_number() && part >= 0; });
    double total = 0;
    if (is_list)
      for (const Json& part : parts) total += part.get<double>();
    if (!(total > 0) || parts[0] == 0) {
      top.refuse("split", "expected shares of training, validation and test as in 969,30,1");
    } else {
      const double held_out = 1 - parts[0].get<double>() / total;
      top.take("split", "data.valid-fraction", fmt::format("{:.6g}", held_out));
      has_validation = held_out > 0;
    }
  }
  if (has_validation) {
    top.take_if_said("eval_interval", "run.eval-every");
    top.take_if_said("eval_iters", "run.eval-batches");
  } else {
    static constexpr std::array<Tuning, 2> tuning{
        {{"eval_interval", "nothing is held out (split, valid_data_path)"},
         {"eval_iters", "nothing is held out (split, valid_data_path)"}}};
    top.apply(tuning);
  }
  if (top.take_if_said("seed", "run.seed")) top.take_if_said("seed", "data.seed");
  const auto save = top.text("save"), load = top.text("load");
  if (load && save == load)
    top.confirm("load", "a run resumes by itself from run.dir");
  else if (load)
    top.refuse("load",
               "this version does not read checkpoints of Megatron-LM, and a run resumes by itself "
               "from run.dir: remove it");
}

/// Names with underscores, out of the sections that some files put them in. A name that comes twice is a
/// contradiction.
void flatten(const Json& object, Json& flat, Translation& to) {
  for (const auto& [name, value] : object.items()) {
    if (value.is_object()) {
      flatten(value, flat, to);
      continue;
    }
    std::string key = name;
    while (key.starts_with('-')) key.erase(0, 1);
    std::replace(key.begin(), key.end(), '-', '_');
    if (flat.contains(key))
      to.refused.push_back(fmt::format(
          "{}: {} stands twice, in two sections or with dashes and underscores: remove one of the two",
          to.path, printable(key)));
    flat[key] = value;
  }
}

}  // namespace

void translate_megatron(const Json& given, Translation& to) {
  Json whole = Json::object();
  flatten(given, whole, to);
  Fields top(&whole, "", to);
  take_batch_terms(top, "global_batch_size", "micro_batch_size", "", to);
  top.apply(kSame);
  take_model(top, whole, to);
  take_precision(top, to);
  take_optimizer(top);
  take_schedule(top, to);
  take_sharding(top);
  take_stages(top);
  take_recomputation(top);
  take_data(top);
  for (const Tuning& row : kUnsupported) {
    const Json* value = top.find(row.name);
    if (value == nullptr) continue;
    if (row.why == nullptr || is_nothing(*value))
      top.ignore(row.name, row.why == nullptr ? "the loss is a mean over all tokens" : "not used");
    else
      top.refuse(row.name, row.why);
  }
  top.apply(kTuning);
  top.apply_prefixes(kPrefixes);
  top.finish();
}

}  // namespace cartan::cli::foreign
