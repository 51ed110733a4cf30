#include "cli/foreign/translate.hpp"

#include <algorithm>
#include <array>

#include "cartan/core/error.hpp"
#include "cli/foreign/document.hpp"
#include "cli/foreign/formats.hpp"

namespace cartan::cli::foreign {
namespace {

/// Keys that no other format has.
constexpr std::array<const char*, 15> kDeepspeed{"train_batch_size",
                                                 "train_micro_batch_size_per_gpu",
                                                 "zero_optimization",
                                                 "gradient_accumulation_steps",
                                                 "steps_per_print",
                                                 "wall_clock_breakdown",
                                                 "activation_checkpointing",
                                                 "zero_allow_untested_optimizer",
                                                 "prescale_gradients",
                                                 "communication_data_type",
                                                 "tensor_parallel",
                                                 "pipeline",
                                                 "gradient_clipping",
                                                 "scheduler",
                                                 "optimizer"};
constexpr std::array<const char*, 15> kMegatron{"tensor_model_parallel_size",
                                                "pipeline_model_parallel_size",
                                                "context_parallel_size",
                                                "num_layers",
                                                "hidden_size",
                                                "num_attention_heads",
                                                "train_iters",
                                                "micro_batch_size",
                                                "global_batch_size",
                                                "lr_decay_style",
                                                "clip_grad",
                                                "use_distributed_optimizer",
                                                "sequence_parallel",
                                                "adam_beta2",
                                                "seq_length"};
constexpr std::array<const char*, 3> kCluster{"parallelism", "elastic_restart", "checkpoint"};

/// `inside`: in sections too.
template <std::size_t N>
int count(const Json& top, const std::array<const char*, N>& names, bool inside = false) {
  int found = 0;
  for (const auto& [name, value] : top.items()) {
    if (inside && value.is_object()) found += count(value, names, true);
    std::string key = name.substr(std::min(name.find_first_not_of('-'), name.size()));
    std::replace(key.begin(), key.end(), '-', '_');
    found += std::find(names.begin(), names.end(), key) != names.end() ? 1 : 0;
  }
  return found;
}

/// fp16 and bf16 are objects there, and truth values in Megatron-LM.
int deepspeed_marks(const Json& top) {
  int found = count(top, kDeepspeed);
  for (const char* name : {"fp16", "bf16", "bfloat16"})
    found += top.contains(name) && top[name].is_object() ? 1 : 0;
  return found;
}

}  // namespace

Translation translate(std::string_view text, const std::string& path) {
  const Json top = parse_document(text, path);
  struct Format {
    const char* name;
    int marks;
    void (*translate)(const Json&, Translation&);
  };
  // Only a cluster's file has parallelism; the keys around it may be named as anybody's.
  const bool is_cluster = top.contains("parallelism") || top.contains("elastic_restart");
  std::array<Format, 3> formats{
      {{"DeepSpeed", is_cluster ? 0 : deepspeed_marks(top), translate_deepspeed},
       {"Megatron-LM", is_cluster ? 0 : count(top, kMegatron, true), translate_megatron},
       {"a cluster", count(top, kCluster), translate_cluster}}};
  std::stable_sort(formats.begin(), formats.end(),
                   [](const Format& a, const Format& b) { return a.marks > b.marks; });
  if (formats[0].marks == 0)
    throw ConfigError(
        "{}: neither a configuration of DeepSpeed (train_batch_size, zero_optimization, ...) nor of "
        "Megatron-LM (tensor_model_parallel_size, num_layers, ...) nor of a cluster (parallelism, "
        "checkpoint, elastic_restart): cartan's own files are given by --config",
        path);
  if (formats[0].marks == formats[1].marks)
    throw ConfigError("{}: as many keys of {} as of {}: leave those of one of them in the file", path,
                      formats[0].name, formats[1].name);
  Translation translation;
  translation.path = path;
  translation.format = formats[0].name;
  formats[0].translate(top, translation);
  refuse_contradictions(translation);
  return translation;
}

}  // namespace cartan::cli::foreign
