// The keys are a contract with users: a key may be added, but its name and meaning stay.
// Ranges here are those of a single value; what depends on several is checked by train::resolve().
#include "cli/option_tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "cartan/pipeline/schedule.hpp"

namespace cartan::cli {
namespace {

// Beyond these, products of sizes could leave 64 bits.
constexpr double kLargestWidth = 1 << 20;
constexpr double kLargestCount = 1 << 30;

std::vector<Option> run_options(train::RunConfig& run) {
  return {
      {.key = "run.dir",
       .target = &run.dir,
       .help = "run directory: metrics, checkpoints, resolved configuration",
       .value_name = "PATH"},
      {.key = "run.steps",
       .target = &run.steps,
       .help = "length of the run in updates",
       .unit = "steps",
       .short_name = "steps",
       .range = between(1, 1e12)},
      {.key = "run.seed", .target = &run.seed, .help = "seed of the initial parameters"},
      {.key = "run.device",
       .target = &run.device,
       .help = "where the model computes",
       .words = {"cpu", "cuda"}},
      {.key = "run.graphs",
       .target = &run.graphs,
       .help = "cuda: work that repeats goes to the GPU as CUDA graphs, many kernels in one launch"},
      {.key = "run.threads",
       .target = &run.threads,
       .help = "threads of a rank; 0: the node's CPUs divided among its ranks",
       .range = between(0, 4096)},
      {.key = "run.log-every",
       .target = &run.log_every,
       .help = "a line in the log every so many steps",
       .unit = "steps",
       .range = at_least(1)},
      {.key = "run.eval-every",
       .target = &run.eval_every,
       .help = "validation loss every so many steps; 0: never",
       .unit = "steps",
       .range = at_least(0)},
      {.key = "run.eval-batches",
       .target = &run.eval_batches,
       .help = "length of one evaluation",
       .unit = "global batches",
       .range = between(1, kLargestCount)},
      {.key = "run.progress",
       .target = &run.progress,
       .help = "a progress bar; auto: where stderr is a terminal",
       .words = {"auto", "always", "never"}},
  };
}

std::vector<Option> model_options(model::ModelConfig& model) {
  model::RopeScaling& rope = model.rope_scaling;
  return {
      {.key = "model.preset",
       .target = &model.preset,
       .help = "a known model, whose values the other keys of this section override",
       .value_name = "NAME",
       .words = model::preset_names(),
       .may_be_empty = true},
      {.key = "model.from",
       .target = &model.from,
       .help =
           "the model and its first parameters: a Hugging Face folder, a checkpoint, or a run directory; the "
           "section's other keys follow from it",
       .value_name = "PATH",
       .may_be_empty = true},
      {.key = "model.family",
       .target = &model.family,
       .help =
           "what it is called when it is exported: llama, mistral, qwen2, qwen3 or phi3; nothing: what fits",
       .words = model::family_names(),
       .may_be_empty = true},
      {.key = "model.hidden",
       .target = &model.hidden,
       .help = "width of the residual stream",
       .range = between(1, kLargestWidth)},
      {.key = "model.layers",
       .target = &model.layers,
       .help = "transformer blocks",
       .range = between(1, 1 << 16)},
      {.key = "model.heads", .target = &model.heads, .help = "query heads", .range = between(1, 1 << 16)},
      {.key = "model.kv-heads",
       .target = &model.kv_heads,
       .help = "key and value heads; 0: as many as query heads",
       .range = between(0, 1 << 16)},
      {.key = "model.head-dim",
       .target = &model.head_dim,
       .help = "width of a head; 0: hidden / heads",
       .range = between(0, 1 << 16)},
      {.key = "model.rotary-dim",
       .target = &model.rotary_dim,
       .help = "channels of a head that turn with the position; 0: all",
       .range = between(0, 1 << 16)},
      {.key = "model.window",
       .target = &model.window,
       .help = "keys that a query sees, itself included; 0: all before it",
       .unit = "tokens",
       .range = between(0, kLargestCount)},
      {.key = "model.window-layers",
       .target = &model.window_layers,
       .help = "in which layers model.window counts: all, or numbers from 0 as in 0-3,7",
       .value_name = "LIST"},
      {.key = "model.max-length",
       .target = &model.max_length,
       .help = "positions that the model is made for, which exports name; 0: not known",
       .unit = "tokens",
       .range = between(0, kLargestCount)},
      {.key = "model.ffn",
       .target = &model.ffn,
       .help = "width inside the SwiGLU layer",
       .range = between(1, kLargestWidth * 8)},
      {.key = "model.vocab",
       .target = &model.vocab,
       .help = "vocabulary; 0: the tokenizer's",
       .unit = "tokens",
       .range = between(0, kLargestCount)},
      {.key = "model.tied", .target = &model.tied, .help = "the head shares the embedding's matrix"},
      {.key = "model.qkv-bias", .target = &model.qkv_bias, .help = "biases on q, k and v (Qwen2)"},
      {.key = "model.qk-norm", .target = &model.qk_norm, .help = "RMS norm of each head of q and k (Qwen3)"},
      {.key = "model.rope-theta",
       .target = &model.rope_theta,
       .help = "base of the rotary frequencies",
       .range = above(0)},
      {.key = "model.rope-scaling",
       .target = &rope.kind,
       .help = "stretching of the rotary frequencies for long contexts",
       .words = model::rope_scaling_names()},
      {.key = "model.rope-factor",
       .target = &rope.factor,
       .help = "how far frequencies are stretched, low ones with llama3 and yarn",
       .range = at_least(1)},
      {.key = "model.rope-low-freq",
       .target = &rope.low_freq_factor,
       .help = "llama3: fewer turns than this in the original length are stretched",
       .range = above(0)},
      {.key = "model.rope-high-freq",
       .target = &rope.high_freq_factor,
       .help = "llama3: more turns than this are left alone",
       .range = above(0)},
      {.key = "model.rope-original-length",
       .target = &rope.original_length,
       .help = "the length trained before stretching (all but linear)",
       .unit = "tokens",
       .range = between(1, kLargestCount)},
      {.key = "model.rope-attention-factor",
       .target = &rope.attention_factor,
       .help = "yarn, longrope: cosines and sines are multiplied by it; 0: as their authors found",
       .range = at_least(0)},
      {.key = "model.rope-beta-fast",
       .target = &rope.beta_fast,
       .help = "yarn: more turns than this in the original length are left alone",
       .range = above(0)},
      {.key = "model.rope-beta-slow",
       .target = &rope.beta_slow,
       .help = "yarn: fewer turns than this are stretched in full",
       .range = above(0)},
      {.key = "model.rope-short-factors",
       .target = &rope.short_factors,
       .help = "longrope: what divides the frequency of each pair of channels, up to the original length",
       .range = above(0)},
      {.key = "model.rope-long-factors",
       .target = &rope.long_factors,
       .help = "longrope: the same in longer sequences",
       .range = above(0)},
      {.key = "model.norm-eps",
       .target = &model.norm_eps,
       .help = "added to the mean square in RMS norms",
       .range = at_least(0)},
      {.key = "model.init-std",
       .target = &model.init_std,
       .help = "standard deviation of initial weights",
       .range = at_least(0)},
  };
}

std::vector<Option> lora_options(model::LoraConfig& lora) {
  return {
      {.key = "lora.rank",
       .target = &lora.rank,
       .help = "rank of adapters beside linear layers, which alone are trained (LoRA); 0: none",
       .range = between(0, kLargestWidth)},
      {.key = "lora.alpha",
       .target = &lora.alpha,
       .help = "what the adapters add is multiplied by alpha / rank",
       .range = above(0)},
      {.key = "lora.dropout",
       .target = &lora.dropout,
       .help = "share of an adapter's inputs that is left away in a training step",
       .range = from_below(0, 1)},
      {.key = "lora.targets",
       .target = &lora.targets,
       .help = "linear layers with adapters: names or patterns as in q_proj *.mlp.*; all-linear: every one",
       .value_name = "PATTERN"},
      {.key = "lora.layers",
       .target = &lora.layers,
       .help = "in which layers: all, or numbers from 0 as in 0-3,7",
       .value_name = "LIST"},
      {.key = "lora.from",
       .target = &lora.from,
       .help =
           "a folder with adapters in PEFT's layout to go on with; the section's other keys follow from it",
       .value_name = "FOLDER",
       .may_be_empty = true},
  };
}

std::vector<Option> trained_options(model::ModelConfig& model) {
  return {{.key = "train.only",
           .target = &model.train_only,
           .help =
               "parameters that are trained, and no others: names or patterns as in *.mlp.* lm_head.weight; "
               "with lora.rank: beside the adapters; nothing: all",
           .value_name = "PATTERN",
           .may_be_empty = true}};
}

std::vector<Option> data_options(data::DataConfig& data) {
  return {
      {.key = "data.train",
       .target = &data.train,
       .help = "data to train on: prefixes of token files, .bin, .jsonl or .parquet files; each may follow a "
               "weight",
       .value_name = "PREFIX..."},
      {.key = "data.valid",
       .target = &data.valid,
       .help = "data for the validation loss, given as data.train is",
       .value_name = "PREFIX..."},
      {.key = "data.valid-fraction",
       .target = &data.valid_fraction,
       .help = "without data.valid: this part of the training data's end is held out",
       .range = from_below(0, 1)},
      {.key = "data.tokenizer",
       .target = &data.tokenizer,
       .help = "byte: one token a byte of UTF-8; or a tokenizer.json of Hugging Face, or the folder with it",
       .value_name = "byte|PATH"},
      {.key = "data.seq",
       .target = &data.seq,
       .help = "length of a sample",
       .unit = "tokens",
       .short_name = "seq",
       .range = between(1, kLargestCount)},
      {.key = "data.seed", .target = &data.seed, .help = "seed of the order of samples"},
      {.key = "data.shuffle", .target = &data.shuffle, .help = "false: documents in stored order"},
      {.key = "data.json-key",
       .target = &data.json_key,
       .help = "member of a JSON line, or column of a Parquet file, that holds the text",
       .value_name = "NAME"},
      {.key = "data.template",
       .target = &data.chat_template,
       .help = "chat template of messages; auto: that of the tokenizer's tokenizer_config.json",
       .words = {"auto", "chatml", "llama3", "phi3"}},
      {.key = "data.cache",
       .target = &data.cache,
       .help = "folder for token files made of .jsonl and .parquet files; empty: data in run.dir",
       .value_name = "PATH",
       .may_be_empty = true},
      {.key = "data.raw-type",
       .target = &data.raw_type,
       .help = "type of the tokens in .bin files without .idx and header; none: such files are refused",
       .words = {"none", "u16", "u32"}},
      {.key = "data.raw-end",
       .target = &data.raw_end,
       .help = "token that ends documents in .bin files without .idx; -1: a file is one document",
       .range = between(-1, 2147483647)},
  };
}

std::vector<Option> mesh_options(comm::MeshShape& mesh) {
  const Range ranks = between(1, 1 << 20);
  return {
      {.key = "mesh.pp",
       .target = &mesh.pp,
       .help = "pipeline stages",
       .unit = "ranks",
       .short_name = "pp",
       .range = ranks},
      {.key = "mesh.dp",
       .target = &mesh.dp,
       .help = "replicas of the model; 0: the ranks that are left",
       .unit = "ranks",
       .short_name = "dp",
       .range = between(0, 1 << 20)},
      {.key = "mesh.cp",
       .target = &mesh.cp,
       .help = "parts of a sequence",
       .unit = "ranks",
       .short_name = "cp",
       .range = ranks},
      {.key = "mesh.tp",
       .target = &mesh.tp,
       .help = "parts of each matrix",
       .unit = "ranks",
       .short_name = "tp",
       .range = ranks},
      {.key = "mesh.tp-grid",
       .target = &mesh.tp_grid,
       .help = "tensor parallelism over a grid, 2x2 for example: rows cut the sequence and each weight once "
               "more, columns cut heads and matrices as mesh.tp does; empty: one row",
       .value_name = "ROWSxCOLUMNS",
       .may_be_empty = true},
  };
}

std::vector<Option> batch_options(train::BatchConfig& batch) {
  return {
      {.key = "batch.global",
       .target = &batch.global,
       .help = "samples in one update, over all ranks",
       .unit = "sequences",
       .range = between(1, kLargestCount)},
      {.key = "batch.micro",
       .target = &batch.micro,
       .help = "samples a rank computes at a time; 0: the largest of 1, 2, 4, 8 that divides its share and "
               "leaves "
               "two micro-batches a pipeline stage",
       .unit = "sequences",
       .range = between(0, kLargestCount)},
  };
}

std::vector<Option> zero_options(train::ZeroConfig& zero) {
  return {
      {.key = "zero.stage",
       .target = &zero.stage,
       .help = "what is sharded over dp: 1 optimizer, 2 and gradients, 3 and parameters",
       .short_name = "zero",
       .range = between(0, 3)},
      {.key = "zero.shard",
       .target = &zero.shard,
       .help = "ranks that share one set of what is sharded; such groups replicate it. 0: all of dp x cp",
       .unit = "ranks",
       .range = between(0, kLargestCount)},
      {.key = "zero.offload",
       .target = &zero.offload,
       .help = "what lies outside of the device's memory: master parameters and moments; all: and parameters "
               "that only "
               "this rank reads. On the cpu it lies in files",
       .words = {"none", "states", "all"}},
      {.key = "zero.offload-dir",
       .target = &zero.offload_dir,
       .help = "folder for these files, best on a disk of the node; nothing: $TMPDIR, or run.dir",
       .value_name = "PATH",
       .may_be_empty = true},
      {.key = "zero.prefetch",
       .target = &zero.prefetch,
       .help = "stage 3: units, beside the embedding, whose parameters are whole at a time",
       .unit = "units",
       .range = between(1, 1 << 16)},
      {.key = "zero.bucket-mb",
       .target = &zero.bucket_mb,
       .help = "gradients are reduced in pieces of about this size",
       .unit = "MiB",
       .range = {.low = 0, .high = 65536, .open_low = true}},
  };
}

std::vector<Option> pipeline_options(train::PipelineConfig& pipe) {
  return {
      {.key = "pipeline.schedule",
       .target = &pipe.schedule,
       .help = "order of the micro-batches on the stages",
       .words = pipeline::schedule_kinds()},
      {.key = "pipeline.chunks",
       .target = &pipe.chunks,
       .help = "parts of the model on each stage (interleaved)",
       .range = between(1, 1 << 16)},
      {.key = "pipeline.cut",
       .target = &pipe.cut,
       .help = "where the model is cut into parts: flops, layers, or the layers of each part as in 3,4,5",
       .value_name = "HOW"},
  };
}

std::vector<Option> tensor_options(train::TensorConfig& tensor) {
  return {{.key = "tensor.chunks",
           .target = &tensor.chunks,
           .help =
               "with mesh.tp: rows of a micro-batch travel in so many parts, each beside the products of the "
               "others; more than 1 where tp's ranks do not share a node",
           .range = between(1, 1024)}};
}

std::vector<Option> context_options(train::ContextConfig& context) {
  return {
      {.key = "context.exchange",
       .target = &context.exchange,
       .help =
           "how the ranks of cp bring keys and values together: passed around a ring while they are used, "
           "gathered, or heads exchanged for rows (Ulysses)",
       .words = {"ring", "all-gather", "all-to-all"}},
  };
}

std::vector<Option> recompute_options(train::RecomputeConfig& recompute) {
  return {
      {.key = "recompute.policy",
       .target = &recompute.policy,
       .help = "what the backward pass computes again instead of keeping it; mlp: the output, gate and up "
               "projections; attention: q, k, v and attention; block: both. offload computes nothing again: "
               "activations wait in memory of the host (on cpu in files of zero.offload-dir)",
       .words = {"none", "mlp", "attention", "block", "offload"}},
      {.key = "recompute.layers",
       .target = &recompute.layers,
       .help = "in which layers: all, or numbers from 0 as in 0-3,7",
       .value_name = "LIST"},
  };
}

std::vector<Option> precision_options(train::PrecisionConfig& precision) {
  return {
      {.key = "precision.compute",
       .target = &precision.compute,
       .help = "parameters and activations in forward and backward",
       .words = {"fp32", "bf16", "fp16"}},
      {.key = "precision.reduce",
       .target = &precision.reduce,
       .help = "gradients on the way to the ranks that sum them, in fp32; fp16 with precision.compute fp16",
       .words = {"fp32", "bf16", "fp16"}},
      {.key = "precision.sum",
       .target = &precision.sum,
       .help =
           "order in which gradients of ranks are added: canonical, the same bits on every mesh, or nccl's "
           "own, with run.device cuda",
       .words = {"canonical", "nccl"}},
      {.key = "precision.buffer",
       .target = &precision.buffer,
       .help = "values of the rotary tables are rounded to it",
       .words = {"fp32", "bf16", "fp16"}},
      {.key = "precision.products",
       .target = &precision.products,
       .help =
           "matrix products of the layers' linear parts: in the type of precision.compute, or fp8: 8 bits "
           "with a scale for each tensor; with precision.compute bf16",
       .words = {"compute", "fp8"}},
      {.key = "precision.fp8-history",
       .target = &precision.fp8_history,
       .help = "fp8: a scale follows from the largest magnitudes of so many steps",
       .unit = "steps",
       .range = between(1, 1024)},
      {.key = "precision.fp8-margin",
       .target = &precision.fp8_margin,
       .help = "fp8: powers of two between these magnitudes and the largest number of 8 bits",
       .range = between(-16, 16)},
      {.key = "precision.loss-scale",
       .target = &precision.loss_scale,
       .help = "fp16: what the loss is multiplied by, so that small gradients do not vanish; 0: found and "
               "adapted while training",
       .range = between(0, 0x1p100)},
      {.key = "precision.loss-scale-power",
       .target = &precision.loss_scale_power,
       .help = "the first adapted scale is 2 to this power",
       .range = between(0, 100)},
      {.key = "precision.loss-scale-window",
       .target = &precision.loss_scale_window,
       .help = "steps without overflow before the scale doubles",
       .unit = "steps",
       .range = between(1, 1e12)},
      {.key = "precision.loss-scale-hysteresis",
       .target = &precision.loss_scale_hysteresis,
       .help = "overflows until the scale halves; 1: each one halves it",
       .range = between(1, 1 << 16)},
      {.key = "precision.loss-scale-min",
       .target = &precision.loss_scale_min,
       .help = "the scale never falls below; an overflow there ends the run",
       .range = {.low = 0, .high = 0x1p100, .open_low = true}},
  };
}

std::vector<Option> hook_options(shard::HookConfig& hook) {
  return {
      {.key = "hook.gradient",
       .target = &hook.gradient,
       .help =
           "gradients compressed on the way over dp and cp, with error feedback: two thin factors of each "
           "matrix, or the largest elements (zero.stage 0 and 1)",
       .words = {"none", "powersgd", "topk"}},
      {.key = "hook.rank",
       .target = &hook.rank,
       .help = "powersgd: rows of a factor",
       .range = between(1, 1 << 16)},
      {.key = "hook.fraction",
       .target = &hook.fraction,
       .help = "topk: share of the elements of a layer that a rank sends",
       .range = {.low = 0, .high = 1, .open_low = true}},
      {.key = "hook.warmup",
       .target = &hook.warmup,
       .help = "first updates of a training, whose gradients are sent whole",
       .unit = "updates",
       .range = between(0, 1e12)},
  };
}

std::vector<Option> optim_options(optim::OptimConfig& optim) {
  return {
      {.key = "optim.lr", .target = &optim.lr, .help = "peak learning rate", .range = at_least(0)},
      {.key = "optim.beta1",
       .target = &optim.beta1,
       .help = "decay of the first moment",
       .range = from_below(0, 1)},
      {.key = "optim.beta2",
       .target = &optim.beta2,
       .help = "decay of the second moment",
       .range = from_below(0, 1)},
      {.key = "optim.eps",
       .target = &optim.eps,
       .help = "added to the root of the second moment",
       .range = above(0)},
      {.key = "optim.weight-decay",
       .target = &optim.weight_decay,
       .help = "decoupled decay of matrices",
       .range = at_least(0)},
      {.key = "optim.clip",
       .target = &optim.clip,
       .help = "largest norm of the gradient; 0: no clipping",
       .range = at_least(0)},
      {.key = "optim.fused",
       .target = &optim.fused,
       .help = "update each layer during the backward pass where nothing is clipped and one rank has the "
               "whole batch",
       .words = {"auto", "never"}},
  };
}

std::vector<Option> schedule_options(optim::ScheduleConfig& schedule) {
  return {
      {.key = "schedule.kind",
       .target = &schedule.kind,
       .help = "course of the learning rate (the last three: DeepSpeed's WarmupLR, WarmupDecayLR and "
               "WarmupCosineLR)",
       .words = optim::schedule_kinds()},
      {.key = "schedule.length",
       .target = &schedule.length,
       .help = "updates after which the course has ended; 0: run.steps",
       .unit = "updates",
       .range = between(0, 1e12)},
      {.key = "schedule.warmup",
       .target = &schedule.warmup,
       .help = "length of the warm-up",
       .unit = "updates",
       .range = between(0, 1e12)},
      {.key = "schedule.warmup-begin",
       .target = &schedule.warmup_begin,
       .help = "rate of update 0, from which the warm-up reaches optim.lr at update schedule.warmup, as in "
               "Megatron-LM; -1: update 0 is one step above zero already",
       .range = at_least(-1)},
      {.key = "schedule.min-lr",
       .target = &schedule.min_lr,
       .help = "where linear, cosine, wsd and warmup-cosine-lr end, and warmup-lr and warmup-decay-lr start",
       .range = at_least(0)},
      {.key = "schedule.decay-steps",
       .target = &schedule.decay_steps,
       .help = "wsd: length of the final decay; 0: a tenth of the run",
       .unit = "updates",
       .range = between(0, 1e12)},
      {.key = "schedule.warmup-type",
       .target = &schedule.warmup_type,
       .help = "course of the warm-up of DeepSpeed's kinds",
       .words = {"linear", "log"}},
  };
}

std::vector<Option> checkpoint_options(train::CheckpointConfig& checkpoint) {
  return {
      {.key = "checkpoint.every",
       .target = &checkpoint.every,
       .help = "a checkpoint every so many steps; 0: only at the end",
       .unit = "steps",
       .range = at_least(0)},
      {.key = "checkpoint.keep",
       .target = &checkpoint.keep,
       .help = "newest checkpoints that stay; 0: all",
       .unit = "files",
       .range = at_least(0)},
      {.key = "checkpoint.async",
       .target = &checkpoint.asynchronous,
       .help = "write beside the training steps"},
      {.key = "checkpoint.io-hint",
       .target = &checkpoint.io_hints,
       .help = "hints for MPI-IO",
       .value_name = "KEY=VALUE..."},
  };
}

std::vector<Option> export_options(train::ExportConfig& exported) {
  return {{.key = "export.dir",
           .target = &exported.dir,
           .help = "after the last step: a Hugging Face folder is written here, over an earlier one",
           .value_name = "PATH",
           .may_be_empty = true},
          {.key = "export.dtype",
           .target = &exported.dtype,
           .help = "type of its parameters; adapters that are written alone are fp32",
           .words = {"fp32", "bf16", "fp16"}},
          {.key = "export.merge",
           .target = &exported.merge,
           .help = "of a training of adapters: the whole model with them added to its weights, instead of a "
                   "folder of the adapters alone in PEFT's layout"}};
}

std::vector<Option> watch_options(train::WatchConfig& watch) {
  return {
      {.key = "watch.replicas",
       .target = &watch.replicas,
       .help = "compare what several ranks hold of the parameters so often; a difference ends the run and "
               "names tensor and rank; 0: never",
       .unit = "steps",
       .range = at_least(0)},
      {.key = "watch.timeout",
       .target = &watch.timeout_s,
       .help = "with run.device cuda: a call of NCCL that the GPU began so long ago ends the run, because "
               "another rank hangs; 0: 600",
       .unit = "s",
       .range = at_least(0)}};
}

std::vector<Option> nccl_options(comm::NcclConfig& nccl) {
  std::vector<Option> options;
  for (std::size_t i = 0; i < comm::kNcclKeys; ++i) {
    const comm::NcclKey& key = comm::nccl_keys()[i];
    options.push_back({.key = fmt::format("nccl.{}", key.key),
                       .target = &nccl.values[i],
                       .help = fmt::format("{}: {}", key.variable, key.help),
                       .value_name = key.low < key.high ? "N" : "",
                       .words = {key.words.begin(), key.words.end()},
                       .may_be_empty = true});
  }
  return options;
}

}  // namespace

std::vector<Option> config_options(train::Config& config) {
  std::vector<Option> all;
  for (auto& section : {run_options(config.run),
                        model_options(config.model),
                        lora_options(config.model.lora),
                        trained_options(config.model),
                        data_options(config.data),
                        mesh_options(config.mesh),
                        batch_options(config.batch),
                        zero_options(config.zero),
                        pipeline_options(config.pipeline),
                        tensor_options(config.tensor),
                        context_options(config.context),
                        recompute_options(config.recompute),
                        precision_options(config.precision),
                        hook_options(config.hook),
                        optim_options(config.optim),
                        schedule_options(config.schedule),
                        checkpoint_options(config.checkpoint),
                        export_options(config.exported),
                        watch_options(config.watch),
                        nccl_options(config.nccl)})
    all.insert(all.end(), section.begin(), section.end());
  return all;
}

std::vector<std::string> training_sections() {
  train::Config any;
  std::vector<std::string> sections;
  for (const Option& option : config_options(any)) {
    const std::string section(section_of(option.key));
    if (std::find(sections.begin(), sections.end(), section) == sections.end()) sections.push_back(section);
  }
  return sections;
}

std::optional<std::string> later_key(std::string_view key) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 2> later{{
      {"checkpoint.local-dir", "node-local checkpoints"},
      {"watch.heartbeat", "watchdog"},
  }};
  for (const auto& [begin, what] : later) {
    if (begin.ends_with('.') ? key.starts_with(begin) : key == begin)
      return "this version of cartan has no " + std::string(what);
  }
  return std::nullopt;
}

std::string_view section_of(std::string_view key) {
  const std::size_t dot = key.find('.');
  return dot == std::string_view::npos ? std::string_view() : key.substr(0, dot);
}

}  // namespace cartan::cli
