// Everything that `cartan train` is told, one struct a section; the option tables of the command line fill
// it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "cartan/comm/mesh.hpp"
#include "cartan/comm/nccl_environment.hpp"
#include "cartan/data/config.hpp"
#include "cartan/model/config.hpp"
#include "cartan/optim/config.hpp"
#include "cartan/optim/loss_scaler.hpp"
#include "cartan/shard/hook_config.hpp"

namespace cartan::train {

struct RunConfig {
  std::string dir = "runs/default";
  Index steps = 100;
  std::uint64_t seed = 1234;
  std::string device = "cpu";     ///< cpu | cuda
  int threads = 0;                ///< a rank; 0: the node's CPUs divided among its ranks
  bool graphs = true;             ///< cuda: repeated work as CUDA graphs
  Index log_every = 1;            ///< steps
  Index eval_every = 0;           ///< steps; 0: never
  Index eval_batches = 8;         ///< global batches of one evaluation
  std::string progress = "auto";  ///< progress bar: auto (where stderr is a terminal) | always | never
};

/// Sequences. Accumulation = global / (micro * dp).
struct BatchConfig {
  Index global = 8;
  /// 0: the largest of 1, 2, 4, 8 that divides a rank's share and leaves two micro-batches a pipeline stage.
  Index micro = 0;
};

struct PrecisionConfig {
  std::string compute = "fp32";   ///< fp32 | bf16 | fp16: parameters and activations in forward and backward
  std::string sum = "canonical";  ///< canonical | nccl: the order in which ranks' gradients are added
  std::string reduce = "fp32";  ///< fp32 | bf16 | fp16: gradients on the way to their owners, who sum in fp32
  std::string buffer = "fp32";  ///< fp32 | bf16 | fp16: values of the rotary tables are rounded to it
  /// compute | fp8: products of the linear layers of blocks, in 8 bits with a scale a tensor, which follows
  /// from the largest magnitudes of so many steps
  std::string products = "compute";
  Index fp8_history = 16;
  int fp8_margin = 0;  ///< powers of two between these and the largest number of 8 bits
  // Of fp16, which multiplies the loss by a scale; with the other types they have no effect.
  double loss_scale = 0;           ///< for good; 0: dynamic, and the keys below count
  int loss_scale_power = 16;       ///< the first scale is 2 to this power
  Index loss_scale_window = 1000;  ///< good steps before the scale doubles
  int loss_scale_hysteresis = 2;   ///< overflows until the scale halves
  double loss_scale_min = 1;       ///< the scale never falls below

  bool has_fp8_products() const { return products == "fp8"; }
  /// What the scaler is made with.
  optim::LossScaleConfig scaling() const;
};

/// What the backward pass computes again instead of keeping it.
struct RecomputeConfig {
  /// none | mlp: gate and up of the feed-forward part | attention: q, k, v and attention | block: both
  std::string policy = "none";
  std::string layers = "all";  ///< all, or numbers from 0: 0-3,7
};

struct ZeroConfig {
  int stage = 0;  ///< 0 nothing, 1 optimizer states, 2 and gradients, 3 and parameters are sharded
  int shard = 0;  ///< ranks that share one set; others replicate it. 0: all of the data plane
  std::string offload = "none";  ///< none | states: master parameters and moments | all: and own parameters
  std::string offload_dir;       ///< for the files of offload on the cpu; empty: $TMPDIR, or run.dir
  int prefetch = 2;         ///< stage 3: units, beside the embedding, whose parameters are whole at a time
  double bucket_mb = 16.0;  ///< gradients are reduced in pieces of about this size
};

/// Of stages over mesh.pp; with one stage the keys have no effect.
struct PipelineConfig {
  std::string schedule = "1f1b";  ///< gpipe | 1f1b | interleaved | zero-bubble
  int chunks = 1;                 ///< parts of the model on each stage: interleaved
  std::string cut = "flops";      ///< flops | layers | blocks of each part: 3,4,5
};

struct TensorConfig {
  int chunks = 1;  ///< rows of a micro-batch travel and are multiplied in so many parts
};

struct ContextConfig {
  std::string exchange = "ring";  ///< ring | all-gather | all-to-all: how cp ranks exchange keys and values
};

struct CheckpointConfig {
  Index every = 100;                  ///< steps; 0: only at the end
  int keep = 3;                       ///< newest files that stay; 0: all
  bool asynchronous = false;          ///< checkpoint.async: write beside the training steps
  std::vector<std::string> io_hints;  ///< checkpoint.io-hint: MPI-IO hints KEY=VALUE
};

/// What a training that has reached its last step leaves for other programs.
struct ExportConfig {
  std::string dir;             ///< export.dir: a Hugging Face folder; empty: none
  std::string dtype = "bf16";  ///< fp32 | bf16 | fp16
  bool merge = false;          ///< adapters are added to the weights, instead of written alone
};

struct WatchConfig {
  Index replicas = 1000;  ///< steps between comparisons of what several ranks hold; 0: never
  double timeout_s = 0;   ///< watch.timeout: for a call of NCCL, once the GPU has begun it; 0: ten minutes

  comm::MeshWatch of_mesh() const { return {.timeout_s = timeout_s > 0 ? timeout_s : 600}; }
};

struct Config {
  RunConfig run;
  model::ModelConfig model;
  data::DataConfig data;
  comm::MeshShape mesh;
  BatchConfig batch;
  ZeroConfig zero;
  TensorConfig tensor;
  ContextConfig context;
  PipelineConfig pipeline;
  RecomputeConfig recompute;
  PrecisionConfig precision;
  shard::HookConfig hook;
  optim::OptimConfig optim;
  optim::ScheduleConfig schedule;
  CheckpointConfig checkpoint;
  ExportConfig exported;
  WatchConfig watch;
  comm::NcclConfig nccl;
};

/// Derives what is left to derive (vocabulary, mesh.dp, batch.micro) and checks all of it for `world_size`
/// ranks. Throws ConfigError with every problem: a batch that does not divide says which would, and so on.
void resolve(Config& config, int world_size);

/// The folder of the tokenizer that the run uses, if it is known: that of data.tokenizer, or of model.from.
std::filesystem::path tokenizer_folder(const std::string& tokenizer, const std::string& model_from);

/// Which of the model's layers recompute.layers names. Throws ConfigError.
std::vector<bool> recomputed_layers(const Config& config);

/// The part of resolve() that says why tensor parallelism over the columns of `mesh` cannot split a derived
/// model with heads.
void check_columns(const model::ModelConfig& model, const comm::MeshShape& mesh, Problems& problems);
/// The part of resolve() that derives batch.micro, for a mesh without zeros. Adds what does not divide.
void check_batch(Config& config, Problems& problems);
/// Micro-batches that a rank computes in a step; after check_batch().
Index micro_batches(const Config& config);

}  // namespace cartan::train
