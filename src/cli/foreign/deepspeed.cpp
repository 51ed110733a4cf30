// DeepSpeed's ds_config.json. Optimizer and schedules are translated to the same numbers or refused; keys
// that tune DeepSpeed's own buffers and streams have no meaning here.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "cli/foreign/batch.hpp"
#include "cli/foreign/formats.hpp"

namespace cartan::cli::foreign {
namespace {

constexpr const char* kLog = "cartan logs to stderr and run.dir/metrics.jsonl";
constexpr const char* kReduction = "gradients are summed in fp32 and divided once";
constexpr const char* kPrefetch =
    "zero.prefetch counts layers: parameters of the next ones are gathered ahead";
constexpr const char* kFiles = "checkpoints of cartan are one file for any mesh";
constexpr const char* kBuffers = "buffers are allocated once, at the start";

const std::array<Tuning, 31> kTopTuning{{
    {"prescale_gradients", kReduction},
    {"gradient_predivide_factor", kReduction},
    {"sparse_gradients", "gradients of the embedding travel whole, with the same values"},
    {"disable_allgather", "how parameters are gathered is cartan's own"},
    {"dump_state", kLog},
    {"wall_clock_breakdown", kLog},
    {"memory_breakdown", kLog},
    {"flops_profiler", kLog},
    {"comms_logger", "metrics.jsonl has the bytes that each axis sent"},
    {"timers", kLog},
    {"tensorboard", kLog},
    {"wandb", kLog},
    {"comet", kLog},
    {"csv_monitor", kLog},
    {"monitor_config", kLog},
    {"zero_allow_untested_optimizer", "cartan has one optimizer, tested with every stage"},
    {"zero_force_ds_cpu_optimizer", "the optimizer runs where its states lie"},
    {"dataloader_drop_last", "samples go on from epoch to epoch without a rest"},
    {"checkpoint", kFiles},
    {"load_universal_checkpoint", kFiles},
    {"nebula", kFiles},
    {"datastates_ckpt", kFiles},
    {"aio", "offloaded states are windows of files in zero.offload-dir"},
    {"autotuning", "cartan does not search for a configuration"},
    {"compile", "cartan is compiled"},
    {"graph_harvesting", "run.graphs"},
    {"seq_parallel_communication_data_type", "activations travel in precision.compute"},
    {"use_data_before_expert_parallel_", "cartan has no experts"},
    {"managed_gradient_accumulation", "accumulation follows from the batch"},
    {"hybrid_engine", "cartan generate is a command of its own"},
    {"weight_quantization_config", "for inference"},
}};

const std::array<Tuning, 31> kZeroTuning{{
    {"allgather_partitions", "parameters are gathered by one collective a unit"},
    {"allgather_bucket_size", "parameters are gathered unit by unit"},
    {"overlap_comm", "reductions always run beside the backward pass"},
    {"reduce_scatter", "each gradient goes to its owner only"},
    {"contiguous_gradients", "gradients always lie in flat buffers"},
    {"use_multi_rank_bucket_allreduce", "each gradient goes to its owner only"},
    {"stage3_max_live_parameters", kPrefetch},
    {"stage3_max_reuse_distance", kPrefetch},
    {"stage3_prefetch_bucket_size", kPrefetch},
    {"stage3_param_persistence_threshold", "every parameter is sharded"},
    {"stage3_model_persistence_threshold", "every parameter is sharded"},
    {"stage3_gather_16bit_weights_on_model_save", kFiles},
    {"stage3_gather_fp16_weights_on_model_save", kFiles},
    {"stage3_module_granularity_threshold", kPrefetch},
    {"stage3_use_all_reduce_for_fetch_params", "parameters are gathered by one collective a unit"},
    {"stage3_allgather_sequential", "parameters are gathered by one collective a unit"},
    {"stage3_partition_stream_chunk_size", "no rank ever holds a whole model that it does not need"},
    {"sub_group_size", "the optimizer works unit by unit"},
    {"elastic_checkpoint", kFiles},
    {"load_from_fp32_weights", "master parameters are stored in fp32"},
    {"round_robin_gradients", "each gradient goes to its owner only"},
    {"ignore_unused_parameters", "every parameter is used"},
    {"legacy_stage1", "there is one stage 1"},
    {"cpu_offload_use_pin_memory", "copies go through pinned windows"},
    {"zero_hpz_partition_size", "zero.shard has groups whose parameters stay inside a node"},
    {"mics_hierarchical_params_gather", "parameters are gathered by one collective a unit"},
    {"memory_efficient_linear", "activations are kept as recompute.policy says"},
    {"pipeline_loading_checkpoint", kFiles},
    {"override_module_apply", "parameters are made where they belong"},
    {"log_trace_cache_warnings", kLog},
    {"enable_sanity_checks", "watch.replicas compares what ranks hold"},
}};

const std::array<Fixed, 3> kZeroFixed{{
    {"zero_quantized_weights", false, "cartan gathers parameters unrounded: set it to false"},
    {"zero_quantized_nontrainable_weights", false, "cartan gathers parameters unrounded: set it to false"},
    {"zero_quantized_gradients", false,
     "cartan has no int8 gradients: set it to false, or use precision.reduce = bf16 or hook.gradient"},
}};

/// Blocks that change what is computed when they are switched on.
struct Block {
  const char* name;
  const char* advice;
};
constexpr std::array<Block, 12> kBlocks{{
    {"amp", "cartan has no Apex: use the fp16 or bf16 block"},
    {"torch_autocast", "cartan computes with 16-bit copies of fp32 parameters: use the bf16 or fp16 block"},
    {"sparse_attention", "cartan's attention is dense: remove the block"},
    {"progressive_layer_drop", "cartan drops no layers: remove the block"},
    {"curriculum_learning", "data.seq is one length for the whole run: remove the block"},
    {"data_efficiency", "cartan takes samples in one order, at one length: remove the block"},
    {"compression_training", "cartan trains whole weights: remove the block"},
    {"quantize_training", "cartan trains whole weights: remove the block"},
    {"eigenvalue", "cartan computes no eigenvalues: remove the block"},
    {"elasticity",
     "the batch is batch.global for every number of ranks, and a run resumes on any: give train_batch_size "
     "and remove the block"},
    {"expert_parallel", "cartan has no experts: remove the block"},
    {"zenflow", "cartan updates all parameters in every step: remove the block"},
}};

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

/// The values of "enabled" in a block and further inside, as compression has them.
void collect_switches(const Json& value, std::vector<Json>& switches) {
  if (!value.is_object()) return;
  for (const auto& [name, member] : value.items()) {
    if (name == "enabled") switches.push_back(member);
    collect_switches(member, switches);
  }
}

/// A block without a switch is on.
bool is_on(const Json& block) {
  if (!block.is_object()) return block != Json(false);
  std::vector<Json> switches;
  collect_switches(block, switches);
  if (switches.empty()) return !block.empty();
  return std::any_of(switches.begin(), switches.end(), [](const Json& s) { return s != Json(false); });
}

void refuse_blocks(Fields& fields) {
  for (const Block& block : kBlocks) {
    const Json* value = fields.find(block.name);
    if (value == nullptr) continue;
    if (is_on(*value))
      fields.refuse(block.name, block.advice);
    else
      fields.ignore(block.name, "switched off");
  }
}

void take_batch(Fields& top, Translation& to) {
  take_batch_terms(top, "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
                   to);
}

bool is_enabled(Fields& block) { return block.flag("enabled").value_or(false); }

void take_fp16(Fields& fp16) {
  static constexpr std::array<std::pair<SameAs, const char*>, 5> keys{{
      {{"loss_scale", "precision.loss-scale"}, "0"},
      {{"initial_scale_power", "precision.loss-scale-power"}, "16"},
      {{"loss_scale_window", "precision.loss-scale-window"}, "1000"},
      {{"hysteresis", "precision.loss-scale-hysteresis"}, "2"},
      {{"min_loss_scale", "precision.loss-scale-min"}, "1"},
  }};
  for (const auto& [same, by_default] : keys) fp16.take_or(same.name, same.key, by_default);
  static const std::array<Fixed, 2> fixed{{
      {"consecutive_hysteresis", false,
       "cartan refills the hysteresis when the scale grows: set it to false"},
      {"fp16_master_weights_and_grads", false, "cartan's master parameters are fp32: set it to false"},
  }};
  fp16.apply(fixed);
  static constexpr std::array<Tuning, 1> tuning{{{"auto_cast", "inputs are token numbers"}}};
  fp16.apply(tuning);
}

void take_bf16(Fields& bf16) {
  static const std::array<Fixed, 2> fixed{{
      {"bf16_master_weights_and_grads", false, "cartan's master parameters are fp32: set it to false"},
      {"bf16_optimizer_states", false, "cartan's moments are fp32: set it to false"},
  }};
  bf16.apply(fixed);
  static constexpr std::array<Tuning, 2> tuning{
      {{"immediate_grad_update", "gradients are accumulated in fp32 as they are made"},
       {"check_grad_overflow", "gradients that are not finite always end the run"}}};
  bf16.apply(tuning);
}

/// What a block says that is switched off.
void list_as_off(Fields& block, const Json* object) {
  if (object == nullptr || !object->is_object()) return;
  for (const auto& [name, value] : object->items())
    if (block.find(name) != nullptr) block.ignore(name, "switched off");
}

void take_precision(Fields& top, Translation& to) {
  const char* bf16_name = top.find("bfloat16") != nullptr ? "bfloat16" : "bf16";
  top.find("bf16");
  Fields fp16 = top.object("fp16"), bf16 = top.object(bf16_name);
  const bool has_fp16 = is_enabled(fp16), has_bf16 = is_enabled(bf16);
  if (has_fp16 && has_bf16) top.refuse("fp16", "bf16 is enabled too: switch one of them off");
  if (has_fp16 && !has_bf16) fp16.take("enabled", "precision.compute", "fp16");
  if (has_bf16) bf16.take("enabled", "precision.compute", "bf16");
  if (has_fp16 || fp16.is_auto("enabled"))
    take_fp16(fp16);
  else
    list_as_off(fp16, top.find("fp16"));
  if (has_bf16 || bf16.is_auto("enabled"))
    take_bf16(bf16);
  else
    list_as_off(bf16, top.find(bf16_name));
  if (!has_fp16 && !has_bf16 && !fp16.is_auto("enabled") && !bf16.is_auto("enabled"))
    to.take_default("precision.compute", "fp32");
  fp16.finish();
  bf16.finish();

  if (const auto type = top.text("communication_data_type")) {
    const std::string name = lower(*type);
    if (name == "fp32" || name == "bf16" || name == "fp16")
      top.take("communication_data_type", "precision.reduce", name);
    else
      top.refuse("communication_data_type", "use fp32, bf16 or fp16");
  }
  Fields types = top.object("data_types");
  if (types.find("grad_accum_dtype") != nullptr)
    types.ignore("grad_accum_dtype", "gradients are accumulated in fp32");
  types.finish();
}

void take_optimizer_params(Fields& params, bool is_adamw, bool sets_rate, Translation& to) {
  const bool is_torch = params.flag("torch_adam").value_or(false);
  if (params.find("torch_adam") != nullptr) params.ignore("torch_adam", "the same update");
  if (sets_rate) {
    params.take_or("lr", "optim.lr", "0.001");
  } else if (params.find("lr") != nullptr) {
    params.ignore("lr", "the scheduler's warmup_max_lr takes its place");
  }
  if (const Json* betas = params.find("betas")) {
    if (betas->is_array() && betas->size() == 2 && (*betas)[0].is_number() && (*betas)[1].is_number()) {
      params.take("betas", "optim.beta1", *scalar_text((*betas)[0]));
      params.take("betas", "optim.beta2", *scalar_text((*betas)[1]));
    } else {
      params.refuse("betas", "expected two numbers");
    }
  } else if (!params.is_auto("betas")) {
    to.take_default("optim.beta1", "0.9");
    to.take_default("optim.beta2", "0.999");
  }
  params.take_or("eps", "optim.eps", "1e-08");
  params.take_or("weight_decay", "optim.weight-decay", is_torch && is_adamw ? "0.01" : "0");

  const auto mode = params.flag("adam_w_mode");
  const double decay = params.number("weight_decay").value_or(0);
  if (mode && !*mode && !is_adamw && (decay != 0 || params.is_auto("weight_decay")))
    params.refuse(
        "adam_w_mode",
        "with weight_decay this is Adam with an L2 term; cartan's decay is decoupled (AdamW): set it "
        "to true or weight_decay to 0");
  else if (mode)
    params.confirm("adam_w_mode", *mode || is_adamw ? "as cartan computes" : "without weight decay the same");
  if (decay != 0)
    to.differing.push_back({params.full("weight_decay"), fmt::format("{}", decay),
                            "cartan decays matrices only, DeepSpeed what the caller's groups say"});
  static const std::array<Fixed, 3> fixed{{
      {"bias_correction", true, "cartan corrects the bias of the moments: set it to true"},
      {"amsgrad", false, "cartan has no AMSGrad: set it to false"},
      {"maximize", false, "cartan minimizes the loss: set it to false"},
  }};
  params.apply(fixed);
  if (params.find("max_grad_norm") != nullptr)
    params.refuse("max_grad_norm", "clipping is the key gradient_clipping: use that");
  static constexpr std::array<Tuning, 5> tuning{{{"fused", "the update is one pass"},
                                                 {"foreach", "the update is one pass"},
                                                 {"capturable", "run.graphs"},
                                                 {"differentiable", "nobody differentiates the update"},
                                                 {"fp32_optimizer_states", "moments are fp32"}}};
  params.apply(tuning);
}

/// `sets_rate`: no schedule does.
void take_optimizer(Fields& top, bool sets_rate, Translation& to) {
  Fields optimizer = top.object("optimizer");
  if (!optimizer.exists()) {
    to.differing.push_back(
        {"optimizer", "not said", "the caller brings one there; here AdamW as [optim] says"});
    return;
  }
  const auto type = optimizer.text("type");
  const std::string name = lower(type.value_or("adamw"));
  if (name != "adam" && name != "adamw") {
    optimizer.refuse("type", "cartan has AdamW: use Adam or AdamW");
  } else {
    if (type) optimizer.confirm("type", "AdamW");
    Fields params = optimizer.object("params");
    take_optimizer_params(params, name == "adamw", sets_rate, to);
    params.finish();
    static constexpr std::array<Tuning, 1> tuning{{{"legacy_fusion", "the update is one pass"}}};
    optimizer.apply(tuning);
  }
  if (name == "adam" || name == "adamw") optimizer.finish();
}

/// The start, end and course of a warm-up as WarmupLR and WarmupDecayLR have them.
void take_warmup(Fields& params) {
  params.take_or("warmup_max_lr", "optim.lr", "0.001");
  params.take_or("warmup_min_lr", "schedule.min-lr", "0");
}

void take_cosine(Fields& params, const std::optional<double>& rate, Translation& to) {
  const auto begin = params.number("warmup_min_ratio"), end = params.number("cos_min_ratio");
  if (!rate) {
    params.refuse("cos_min_ratio", "WarmupCosineLR scales optimizer.params.lr: give it a number there");
    return;
  }
  if (begin)
    params.take("warmup_min_ratio", "schedule.warmup-begin", fmt::format("{}", *begin * *rate));
  else
    to.take_default("schedule.warmup-begin", "0");
  if (end)
    params.take("cos_min_ratio", "schedule.min-lr", fmt::format("{}", *end * *rate));
  else
    to.take_default("schedule.min-lr", fmt::format("{}", 0.0001 * *rate));
}

/// Whether the schedule sets the peak rate itself.
bool brings_rate(const Json& top) {
  const auto scheduler = top.find("scheduler");
  if (scheduler == top.end() || !scheduler->is_object()) return false;
  const Json type = scheduler->value("type", Json());
  if (type != "WarmupLR" && type != "WarmupDecayLR") return false;
  const Json params = scheduler->value("params", Json());
  return !(params.is_object() && params.contains("warmup_max_lr") && params["warmup_max_lr"] == "auto");
}

void take_scheduler(Fields& top, const Json& whole, Translation& to) {
  Fields scheduler = top.object("scheduler");
  if (!scheduler.exists()) {
    const Json* unfit = top.find("scheduler");
    if (unfit == nullptr) to.take_default("schedule.kind", "constant");
    return;
  }
  static constexpr std::array<SameAs, 3> kinds{{{"WarmupLR", "warmup-lr"},
                                                {"WarmupDecayLR", "warmup-decay-lr"},
                                                {"WarmupCosineLR", "warmup-cosine-lr"}}};
  const auto type = scheduler.text("type");
  if (!type) {
    if (whole["scheduler"].empty()) to.take_default("schedule.kind", "constant");
    scheduler.finish();
    return;
  }
  const auto kind =
      std::find_if(kinds.begin(), kinds.end(), [&](const SameAs& row) { return *type == row.name; });
  if (kind == kinds.end()) {
    scheduler.refuse("type",
                     "cartan has WarmupLR, WarmupDecayLR and WarmupCosineLR: use one of them, or "
                     "leave scheduler away and give schedule.kind in an INI");
    return;
  }
  scheduler.take("type", "schedule.kind", kind->key);
  Fields params = scheduler.object("params");
  if (*type == "WarmupCosineLR") {
    Fields optimizer(
        whole.contains("optimizer") && whole["optimizer"].is_object() ? &whole["optimizer"] : nullptr,
        "optimizer", to);
    std::optional<double> rate;
    if (const Json* values = optimizer.find("params"); values != nullptr && values->is_object()) {
      const Json lr = values->value("lr", Json(0.001));
      if (lr.is_number()) rate = lr.get<double>();
    }
    take_cosine(params, rate, to);
  } else {
    take_warmup(params);
  }
  if (*type != "WarmupLR") params.take_if_said("total_num_steps", "schedule.length");
  params.take_or("warmup_num_steps", "schedule.warmup", "1000");
  params.take_or("warmup_type", "schedule.warmup-type", "log");
  static const std::array<Fixed, 1> fixed{
      {{"last_batch_iteration", -1, "a schedule begins with the run: leave it away"}}};
  params.apply(fixed);
  params.finish();
  scheduler.finish();
}

/// DeepSpeed's offload_optimizer and offload_param; `is_covered`: the other one says more.
void take_offload(Fields& block, const char* what, bool is_covered) {
  if (!block.exists()) return;
  const std::string device = block.text("device").value_or("none");
  static constexpr std::array<Tuning, 11> tuning{
      {{"pin_memory", "copies go through pinned windows"},
       {"buffer_count", kBuffers},
       {"buffer_size", kBuffers},
       {"max_in_cpu", kBuffers},
       {"pipeline", "reading and writing go on beside the update"},
       {"pipeline_read", "reading goes on beside the update"},
       {"pipeline_write", "writing goes on beside the update"},
       {"fast_init", kBuffers},
       {"super_offload", "the update runs where cartan's optimizer runs"},
       {"cpuadam_cores_perc", "run.threads"},
       {"ratio", "all of what is offloaded lies outside of the device's memory"}}};
  block.apply(tuning);
  const bool is_on = device == "cpu" || device == "nvme";
  if (is_on && is_covered)
    block.confirm("device", "zero.offload = all, as offload_param says");
  else if (is_on)
    block.take("device", "zero.offload", what);
  else if (device != "none")
    block.refuse("device", "use none, cpu or nvme");
  else if (block.find("device") != nullptr)
    block.ignore("device", "switched off");
  if (is_on && device == "nvme") block.take_if_said("nvme_path", "zero.offload-dir");
  if (block.find("nvme_path") != nullptr && device != "nvme") block.ignore("nvme_path", "not used there");
  block.finish();
}

/// Elements of gradients, which are fp32 here.
std::string bucket_text(double elements) { return fmt::format("{}", elements * 4 / (1 << 20)); }

void take_zero(Fields& top, const Json& whole, Translation& to) {
  if (const Json* old = top.find("zero_optimization"); old != nullptr && old->is_boolean()) {
    top.take("zero_optimization", "zero.stage", old->get<bool>() ? "1" : "0");
    return;
  }
  Fields zero = top.object("zero_optimization");
  zero.take_or("stage", "zero.stage", "0");
  const bool is_sharded = zero.exists() && whole["zero_optimization"].value("stage", Json(0)) != Json(0);
  if (const auto elements = zero.number("reduce_bucket_size"))
    zero.take("reduce_bucket_size", "zero.bucket-mb", bucket_text(*elements));
  else if (is_sharded && zero.find("reduce_bucket_size") == nullptr &&
           !whole["zero_optimization"].contains("reduce_bucket_size"))
    to.take_default("zero.bucket-mb", bucket_text(5e8));
  zero.apply(kZeroTuning);
  zero.apply(kZeroFixed);

  Fields states = zero.object("offload_optimizer"), parameters = zero.object("offload_param");
  const std::string parameters_go = parameters.exists() ? parameters.text("device").value_or("none") : "none";
  const bool takes_all = parameters_go == "cpu" || parameters_go == "nvme";
  take_offload(states, "states", takes_all);
  take_offload(parameters, "all", false);
  for (const auto& [name, what] :
       {std::pair{"cpu_offload", "states"}, {"cpu_offload_param", "all"}, {"cpu_offload_params", "all"}}) {
    const auto on = zero.flag(name);
    if (on && *on)
      zero.take(name, "zero.offload", what);
    else if (on)
      zero.ignore(name, "switched off");
  }
  if (const auto width = zero.number("mics_shard_size")) {
    if (*width > 0)
      zero.take("mics_shard_size", "zero.shard", fmt::format("{}", *width));
    else
      zero.ignore("mics_shard_size", "switched off");
  }
  if (zero.find("leaf_module") != nullptr) zero.ignore("leaf_module", kPrefetch);
  if (zero.find("zeropp_loco_param") != nullptr)
    zero.ignore("zeropp_loco_param", "belongs to zero_quantized_gradients");
  refuse_blocks(zero);
  zero.finish();
}

void take_activation_checkpointing(Fields& top, bool pipeline_recomputes) {
  Fields block = top.object("activation_checkpointing");
  if (!block.exists()) return;
  bool is_taken = pipeline_recomputes;
  // Whether anything is recomputed is up to the model's code there; who sets one of these wants it.
  for (const char* name : {"partition_activations", "cpu_checkpointing"}) {
    const auto on = block.flag(name);
    if (!on) continue;
    if (!*on) {
      block.ignore(name, "switched off");
    } else if (is_taken) {
      block.ignore(name, "inputs of the layers stay on the device, in the part of each rank");
    } else {
      block.take(name, "recompute.policy", "block");
      is_taken = true;
    }
  }
  if (const auto count = block.whole("number_checkpoints")) {
    if (*count > 0 && !is_taken)
      block.take("number_checkpoints", "recompute.policy", "block");
    else
      block.ignore("number_checkpoints", "each layer is one checkpoint");
  }
  static constexpr std::array<Tuning, 3> tuning{
      {{"contiguous_memory_optimization", "activations lie in an arena"},
       {"synchronize_checkpoint_boundary", "nobody waits at a checkpoint"},
       {"profile", kLog}}};
  block.apply(tuning);
  block.finish();
}

/// Whether it says that layers are recomputed.
bool take_pipeline(Fields& top) {
  Fields block = top.object("pipeline");
  if (!block.exists()) return false;
  bool recomputes = false;
  block.take_if_said("stages", "mesh.pp");
  if (const auto partition = block.text("partition")) {
    if (*partition == "uniform")
      block.take("partition", "pipeline.cut", "layers");
    else if (*partition == "parameters" || *partition == "best")
      block.take("partition", "pipeline.cut", "flops");
    else
      block.ignore("partition", "pipeline.cut says how the layers are cut");
  }
  if (const auto interval = block.whole("activation_checkpoint_interval")) {
    recomputes = *interval > 0;
    if (recomputes)
      block.take("activation_checkpoint_interval", "recompute.policy", "block");
    else
      block.ignore("activation_checkpoint_interval", "switched off");
  }
  static constexpr std::array<Tuning, 5> tuning{
      {{"seed_layers", "initial values depend on run.seed only"},
       {"pipe_partitioned", "ranks of mesh.tp send their rows only"},
       {"grad_partitioned", "ranks of mesh.tp send their rows only"},
       {"use_reentrant", "cartan has no autograd"},
       {"topology", "the mesh is mesh.*"}}};
  block.apply(tuning);
  block.finish();
  return recomputes;
}

/// 0 is DeepSpeed's word for "not at all".
void take_width(Fields& fields, const char* name) {
  const Json* value = fields.find(name);
  if (value != nullptr && *value == 0)
    fields.ignore(name, "switched off");
  else
    fields.take_if_said(name, "mesh.tp");
}

void take_mesh(Fields& top) {
  Fields tensor = top.object("tensor_parallel");
  take_width(tensor, "autotp_size");
  take_width(tensor, "tp_size");
  Fields inner = tensor.object("tp");
  take_width(inner, "tp_size");
  static constexpr std::array<Tuning, 3> inner_tuning{{{"tp_grain_size", "heads and columns divide evenly"},
                                                       {"mpu", "the mesh is mesh.*"},
                                                       {"tp_group", "the mesh is mesh.*"}}};
  inner.apply(inner_tuning);
  inner.finish();
  static constexpr std::array<Tuning, 7> tuning{
      {{"enabled", "mesh.tp"},
       {"dtype", "the type is precision.compute"},
       {"tp_overlap_comm", "tensor.chunks"},
       {"tensor_parallel", "the mesh is mesh.*"},
       {"injection_policy_tuple", "cartan knows how its layers are split"},
       {"preset_model", "cartan knows how its layers are split"},
       {"partition_config", "cartan knows how its layers are split"}}};
  tensor.apply(tuning);
  tensor.finish();
  if (top.take_if_said("sequence_parallel_size", "mesh.cp"))
    top.take("sequence_parallel_size", "context.exchange", "all-to-all");
}

}  // namespace

void translate_deepspeed(const Json& whole, Translation& to) {
  Fields top(&whole, "", to);
  take_batch(top, to);
  take_precision(top, to);
  take_optimizer(top, !brings_rate(whole), to);
  take_scheduler(top, whole, to);
  // The library alone clips only where it is told to; as most people start it, it clips at 1.
  top.take_or("gradient_clipping", "optim.clip", "1");
  take_zero(top, whole, to);
  take_mesh(top);
  take_activation_checkpointing(top, take_pipeline(top));
  top.take_if_said("steps_per_print", "run.log-every");
  static const std::array<Fixed, 1> fixed{
      {{"gradient_allreduce_op", "avg", "the loss is a mean over all tokens: use avg"}}};
  top.apply(fixed);
  refuse_blocks(top);
  top.apply(kTopTuning);
  top.finish();
}

}  // namespace cartan::cli::foreign
