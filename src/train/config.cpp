// Derived values and checks of a whole configuration.
#include "cartan/train/config.hpp"

#include <algorithm>
#include <array>

#include "cartan/core/narrow.hpp"
#include "cartan/core/text.hpp"
#include "cartan/data/tokenizer.hpp"
#include "cartan/device/device.hpp"
#include "cartan/model/context_group.hpp"
#include "cartan/pipeline/cut.hpp"
#include "cartan/pipeline/schedule.hpp"
#include "cartan/store/model_folder.hpp"

namespace cartan::train {
namespace {

/// With two micro-batches a stage the stages of a 1f1b pipeline stand idle for at most a third of the step.
Index default_micro(Index share, Index stages) {
  for (const Index micro : {8, 4, 2})
    if (share % micro == 0 && (stages == 1 || share / micro >= 2 * stages)) return micro;
  return 1;
}

void check_zero(const Config& config, Problems& problems) {
  const ZeroConfig& zero = config.zero;
  if (zero.stage < 0 || zero.stage > 3) problems.add("zero.stage = {}: use 0, 1, 2 or 3", zero.stage);
  if (zero.offload != "none" && zero.offload != "states" && zero.offload != "all")
    problems.add("zero.offload = {}: use none, states or all", zero.offload);
  if (zero.prefetch < 1) problems.add("zero.prefetch = {}: must be at least 1", zero.prefetch);
  const int plane = config.mesh.dp * config.mesh.context();
  if (zero.shard < 0 || (zero.shard > 0 && plane % zero.shard != 0)) {
    std::string fitting;
    for (int width = 1; width <= plane; ++width)
      if (plane % width == 0) fitting += fmt::format("{}{}", fitting.empty() ? "" : ", ", width);
    problems.add("zero.shard = {} does not divide the {} ranks of dp x cp: use one of {} (0: all of them)",
                 zero.shard, plane, fitting);
  } else if (zero.shard % config.mesh.rows != 0) {
    problems.add(
        "zero.shard = {} is not a multiple of the {} rows of mesh.tp-grid, which always share: use {}",
        zero.shard, config.mesh.rows, multiples_around(zero.shard, config.mesh.rows));
  }
}

/// How gradients travel.
void check_exchange(const Config& config, Problems& problems) {
  shard::check(config.hook, problems);
  const PrecisionConfig& precision = config.precision;
  for (const auto& [key, dtype] : {std::pair{"compute", &precision.compute},
                                   {"reduce", &precision.reduce},
                                   {"buffer", &precision.buffer}})
    if (*dtype != "fp32" && *dtype != "bf16" && *dtype != "fp16")
      problems.add("precision.{} = {}: use fp32, bf16 or fp16", key, *dtype);
  if (precision.reduce == "fp16" && precision.compute != "fp16")
    problems.add(
        "precision.reduce = fp16 overflows with precision.compute = {}, which has no loss scale: use "
        "precision.reduce bf16",
        precision.compute);
  if (precision.sum != "canonical" && precision.sum != "nccl")
    problems.add("precision.sum = {}: use canonical or nccl", precision.sum);
  if (precision.sum == "nccl" && config.run.device != "cuda")
    problems.add("precision.sum = nccl needs run.device = cuda: use precision.sum canonical on {}",
                 config.run.device);
  if (precision.sum == "nccl" && precision.reduce != "fp32")
    problems.add(
        "precision.sum = nccl adds fp32 gradients, those of precision.reduce = {} are added by their owners: "
        "leave one of them away",
        precision.reduce);
  if (precision.products != "compute" && precision.products != "fp8")
    problems.add("precision.products = {}: use compute or fp8", precision.products);
  if (precision.has_fp8_products() && precision.compute != "bf16")
    problems.add(
        "precision.products = fp8 rounds bf16 numbers to 8 bits, but precision.compute = {}: use "
        "precision.compute bf16, or precision.products compute",
        precision.compute);
  if (precision.fp8_history < 1 || precision.fp8_history > 1024)
    problems.add("precision.fp8-history = {}: use 1 to 1024", precision.fp8_history);
  if (precision.fp8_margin < -16 || precision.fp8_margin > 16)
    problems.add("precision.fp8-margin = {}: use -16 to 16", precision.fp8_margin);
  const std::string& hook = config.hook.gradient;
  if (hook == "none") return;
  if (config.mesh.rows > 1)
    problems.add(
        "hook.gradient = {} needs ranks that keep whole gradients, which the rows of mesh.tp-grid = {} "
        "share: "
        "leave one of them away",
        hook, config.mesh.tp_grid);
  if (config.zero.stage >= 2)
    problems.add(
        "hook.gradient = {} needs ranks that keep whole gradients, which zero.stage = {} shards: use "
        "zero.stage 0 or 1, or hook.gradient none",
        hook, config.zero.stage);
  if (precision.compute == "fp16")
    problems.add(
        "hook.gradient = {} keeps what is not sent for later steps, whose loss scale would be another with "
        "precision.compute = fp16: use bf16 or fp32 there, or hook.gradient none",
        hook);
}

void check_run(const Config& config, Problems& problems) {
  const RunConfig& run = config.run;
  if (run.steps < 1) problems.add("run.steps = {}: must be at least 1", run.steps);
  if (run.log_every < 1) problems.add("run.log-every = {}: must be at least 1", run.log_every);
  if (run.eval_every < 0) problems.add("run.eval-every = {}: must not be negative", run.eval_every);
  if (run.eval_batches < 1) problems.add("run.eval-batches = {}: must be at least 1", run.eval_batches);
  if (run.threads < 0) problems.add("run.threads = {}: must not be negative", run.threads);
  if (run.dir.empty()) problems.add("run.dir is empty: name a directory");
  if (run.eval_every > 0 && config.data.valid.empty() && config.data.valid_fraction <= 0)
    problems.add("run.eval-every = {} needs data.valid or data.valid-fraction", run.eval_every);
  if (run.device != "cpu" && run.device != "cuda")
    problems.add("run.device = {}: use cpu or cuda", run.device);
  check_exchange(config, problems);
  optim::check(config.precision.scaling(), problems);
  const std::string& policy = config.recompute.policy;
  if (policy != "none" && policy != "mlp" && policy != "attention" && policy != "block" &&
      policy != "offload")
    problems.add("recompute.policy = {}: use none, mlp, attention, block or offload", policy);
  try {
    if (config.model.layers > 0) recomputed_layers(config);
  } catch (const ConfigError& error) {
    problems.add("{}", error.what());
  }
  if (config.optim.fused != "auto" && config.optim.fused != "never")
    problems.add("optim.fused = {}: use auto or never", config.optim.fused);
  if (config.checkpoint.every < 0 || config.checkpoint.keep < 0)
    problems.add("checkpoint.every = {} and checkpoint.keep = {}: must not be negative",
                 config.checkpoint.every, config.checkpoint.keep);
  if (!(config.zero.bucket_mb > 0))
    problems.add("zero.bucket-mb = {}: must be positive", config.zero.bucket_mb);
  check_zero(config, problems);
  if (config.watch.replicas < 0)
    problems.add("watch.replicas = {}: must not be negative", config.watch.replicas);
  comm::check(config.nccl, problems);
  if (!(config.watch.timeout_s >= 0))
    problems.add("watch.timeout = {}: must not be negative", config.watch.timeout_s);
  if (config.watch.timeout_s > 0 && run.device != "cuda")
    problems.add("watch.timeout = {} is for calls of NCCL: leave it away with run.device = {}",
                 config.watch.timeout_s, run.device);
  if (config.tensor.chunks < 1) problems.add("tensor.chunks = {}: must be at least 1", config.tensor.chunks);
}

/// Whether tensor parallelism over `tp` ranks can split the model's heads.
bool heads_split(const model::ModelConfig& model, Index tp) {
  return model.heads % tp == 0 && (model.kv_heads % tp == 0 || tp % model.kv_heads == 0);
}

/// What depends on tp and cp.
void check_slices(const Config& config, Problems& problems) {
  const model::ModelConfig& model = config.model;
  const Index tp = config.mesh.columns();
  if (model.heads < 1 || model.kv_heads < 1) return;
  check_columns(model, config.mesh, problems);
  if (!heads_split(model, tp)) return;
  try {
    const std::string why =
        model::why_not(model, config.data.seq, config.mesh.cp, narrow<int>(tp),
                       model::context_exchange_from_name(config.context.exchange), config.mesh.rows);
    if (!why.empty()) problems.add("{}", why);
  } catch (const ConfigError& error) {
    problems.add("{}", error.what());
  }
}

/// What depends on stages; `has_batch`: the batch divides.
void check_pipeline(const Config& config, bool has_batch, Problems& problems) {
  const PipelineConfig& pipe = config.pipeline;
  const Index stages = config.mesh.pp;
  Problems cut;
  pipeline::check_cut(pipe.cut, cut);
  for (const std::string& line : cut.lines()) problems.add("{}", line);
  if (stages <= 1) return;
  // Where the batch itself is wrong, any number that fits is supposed.
  pipeline::check(pipe.schedule, config.mesh.pp, has_batch ? micro_batches(config) : stages, pipe.chunks,
                  problems);
  const bool has_parts = pipe.chunks == 1 || (pipe.chunks > 1 && pipe.schedule == "interleaved");
  if (!has_parts || config.model.layers < 1) return;
  const Index parts = stages * pipe.chunks;
  if (config.model.layers < parts) {
    problems.add(
        "model.layers = {} are too few for {} * {} = {} parts of a pipeline (mesh.pp * pipeline.chunks): use "
        "at most {} parts, or at least {} layers",
        config.model.layers, stages, pipe.chunks, parts, config.model.layers, parts);
    return;
  }
  if (!cut.empty()) return;
  try {
    pipeline::cut_units(config.model, config.data.seq, narrow<int>(parts), pipe.cut);
  } catch (const ConfigError& error) {
    problems.add("{}", error.what());
  }
}

}  // namespace

optim::LossScaleConfig PrecisionConfig::scaling() const {
  return {.enabled = compute == "fp16",
          .fixed = loss_scale,
          .initial_power = loss_scale_power,
          .window = loss_scale_window,
          .hysteresis = loss_scale_hysteresis,
          .minimum = loss_scale_min};
}

std::filesystem::path tokenizer_folder(const std::string& tokenizer, const std::string& model_from) {
  const std::filesystem::path file(tokenizer);
  if (file.extension() == ".json") return file.has_parent_path() ? file.parent_path() : ".";
  for (const std::string& folder : {tokenizer, model_from})
    if (!folder.empty() && (std::filesystem::exists(std::filesystem::path(folder) / "tokenizer.json") ||
                            store::is_model_folder(folder)))
      return folder;
  return {};
}

std::vector<bool> recomputed_layers(const Config& config) {
  const Index layers = config.model.layers;
  const std::string& which = config.recompute.layers;
  if (which == "all") return std::vector<bool>(narrow<std::size_t>(layers), true);
  const auto named = parse_ranges(which, layers);
  if (!named)
    throw ConfigError("recompute.layers = {}: use all, or numbers from 0 to {} as in 0-{}", which, layers - 1,
                      (layers - 1) / 2);
  return *named;
}

Index micro_batches(const Config& config) {
  return config.batch.global / (config.batch.micro * config.mesh.dp);
}

void check_columns(const model::ModelConfig& model, const comm::MeshShape& mesh, Problems& problems) {
  const Index tp = mesh.columns();
  const char* key = mesh.rows == 1 ? "mesh.tp" : "columns of mesh.tp-grid";
  if (!heads_split(model, tp)) {
    std::string fitting;
    for (Index n = 1; n <= model.heads; ++n)
      if (heads_split(model, n)) fitting += fmt::format("{}{}", fitting.empty() ? "" : ", ", n);
    problems.add(
        "{} = {} cannot split model.heads = {} with model.kv-heads = {}: it must divide the heads, and "
        "divide or be a multiple of the key/value heads: use one of {}",
        key, tp, model.heads, model.kv_heads, fitting);
  }
  if (model.ffn < tp)
    problems.add("{} = {} is more than model.ffn = {}: use at most that", key, tp, model.ffn);
  if (model.vocab < tp)
    problems.add("{} = {} is more than model.vocab = {}: use at most that", key, tp, model.vocab);
}

void check_batch(Config& config, Problems& problems) {
  BatchConfig& batch = config.batch;
  const Index dp = config.mesh.dp;
  if (batch.global < 1 || batch.micro < 0) {
    problems.add("batch.global = {} and batch.micro = {}: must be at least 1 (micro 0: chosen)", batch.global,
                 batch.micro);
    return;
  }
  if (batch.global % dp != 0) {
    problems.add("batch.global = {} is not divisible by mesh.dp = {}: use {}", batch.global, dp,
                 multiples_around(batch.global, dp));
    return;
  }
  const Index share = batch.global / dp;
  if (batch.micro == 0) batch.micro = default_micro(share, config.mesh.pp);
  if (share % batch.micro != 0)
    problems.add(
        "batch.global = {} is not divisible by batch.micro * mesh.dp = {} * {} = {}: use batch.global {}, or "
        "a batch.micro that divides {}",
        batch.global, batch.micro, dp, batch.micro * dp, multiples_around(batch.global, batch.micro * dp),
        share);
}

void resolve(Config& config, int world_size) {
  Problems problems;
  try {
    config.mesh = comm::resolve_mesh(config.mesh, world_size);
  } catch (const ConfigError& error) {
    problems.add("{}", error.what());
    config.mesh = {1, std::max(1, world_size), 1, 1};
  }
  try {
    config.model.derive(data::make_tokenizer(config.data.tokenizer)->vocab_size());
  } catch (const Error& error) {
    // Of a name that is no file, data::check says so.
    if (data::names_tokenizer_file(config.data.tokenizer)) problems.add("{}", error.what());
    config.model.derive(1);
  }
  model::check(config.model, problems);
  data::check(config.data, problems);
  optim::check(config.optim, problems);
  optim::check(config.schedule, config.run.steps, problems);
  if (config.schedule.kind != "constant" && config.schedule.min_lr > config.optim.lr)
    problems.add("schedule.min-lr = {} is above optim.lr = {}: use at most that", config.schedule.min_lr,
                 config.optim.lr);
  check_run(config, problems);
  check_slices(config, problems);
  const std::size_t before_batch = problems.lines().size();
  check_batch(config, problems);
  check_pipeline(config, problems.lines().size() == before_batch, problems);
  problems.throw_if_any("the configuration");
}

}  // namespace cartan::train
