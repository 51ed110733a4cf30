// A cluster's YAML: parallelism, checkpoint, elastic_restart, and what else such a file says of a training.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "cli/foreign/batch.hpp"
#include "cli/foreign/formats.hpp"
#include "cli/option_tables.hpp"

namespace cartan::cli::foreign {
namespace {

constexpr std::array<SameAs, 17> kParallelism{{
    {"tensor", "mesh.tp"},
    {"tensor_parallel", "mesh.tp"},
    {"tp", "mesh.tp"},
    {"pipeline", "mesh.pp"},
    {"pipeline_parallel", "mesh.pp"},
    {"pp", "mesh.pp"},
    {"context", "mesh.cp"},
    {"context_parallel", "mesh.cp"},
    {"cp", "mesh.cp"},
    {"data_parallel", "mesh.dp"},
    {"dp", "mesh.dp"},
    {"data", "mesh.dp"},
    {"zero", "zero.stage"},
    {"zero_stage", "zero.stage"},
    {"chunks", "pipeline.chunks"},
    {"schedule", "pipeline.schedule"},
    {"virtual_stages", "pipeline.chunks"},
}};

constexpr std::array<SameAs, 10> kCheckpoint{{
    {"interval", "checkpoint.every"},
    {"every", "checkpoint.every"},
    {"interval_steps", "checkpoint.every"},
    {"keep_last", "checkpoint.keep"},
    {"keep", "checkpoint.keep"},
    {"async_save", "checkpoint.async"},
    {"async", "checkpoint.async"},
    {"dir", "run.dir"},
    {"directory", "run.dir"},
    {"path", "run.dir"},
}};

constexpr std::array<SameAs, 29> kTop{{
    {"seed", "run.seed"},
    {"steps", "run.steps"},
    {"max_steps", "run.steps"},
    {"train_steps", "run.steps"},
    {"device", "run.device"},
    {"run_dir", "run.dir"},
    {"output_dir", "run.dir"},
    {"log_interval", "run.log-every"},
    {"eval_interval", "run.eval-every"},
    {"global_batch_size", "batch.global"},
    {"batch_size", "batch.global"},
    {"micro_batch_size", "batch.micro"},
    {"seq_length", "data.seq"},
    {"sequence_length", "data.seq"},
    {"seq_len", "data.seq"},
    {"learning_rate", "optim.lr"},
    {"lr", "optim.lr"},
    {"min_lr", "schedule.min-lr"},
    {"warmup_steps", "schedule.warmup"},
    {"lr_schedule", "schedule.kind"},
    {"weight_decay", "optim.weight-decay"},
    {"beta1", "optim.beta1"},
    {"beta2", "optim.beta2"},
    {"eps", "optim.eps"},
    {"gradient_clipping", "optim.clip"},
    {"grad_clip", "optim.clip"},
    {"clip_grad", "optim.clip"},
    {"zero_stage", "zero.stage"},
    {"preset", "model.preset"},
}};

constexpr const char* kJob = "belongs to the job script: sbatch options and srun";
constexpr std::array<Tuning, 28> kJobKeys{{
    {"nodes", kJob},
    {"gpus_per_node", kJob},
    {"tasks_per_node", kJob},
    {"ntasks_per_node", kJob},
    {"cpus_per_task", kJob},
    {"partition", kJob},
    {"account", kJob},
    {"qos", kJob},
    {"time", kJob},
    {"time_limit", kJob},
    {"walltime", kJob},
    {"job_name", kJob},
    {"slurm", kJob},
    {"resources", kJob},
    {"launcher", kJob},
    {"environment", kJob},
    {"env", kJob},
    {"modules", kJob},
    {"container", kJob},
    {"image", kJob},
    {"reservation", kJob},
    {"constraint", kJob},
    {"hosts", kJob},
    {"queue", kJob},
    {"name", "a name for people"},
    {"description", "a text for people"},
    {"version", "cartan's keys keep their meaning"},
    {"cluster", kJob},
}};

std::string dtype_of(const std::string& name) {
  static constexpr std::array<SameAs, 10> names{{{"bfloat16", "bf16"},
                                                 {"bf16-mixed", "bf16"},
                                                 {"bf16_mixed", "bf16"},
                                                 {"float16", "fp16"},
                                                 {"half", "fp16"},
                                                 {"16-mixed", "fp16"},
                                                 {"fp16-mixed", "fp16"},
                                                 {"float32", "fp32"},
                                                 {"float", "fp32"},
                                                 {"32", "fp32"}}};
  for (const SameAs& row : names)
    if (name == row.name) return row.key;
  return name;
}

void take_dtype(Fields& fields, const char* name, const char* key) {
  const Json* value = fields.find(name);
  if (value == nullptr) return;
  if (const auto text = scalar_text(*value))
    fields.take(name, key, dtype_of(*text));
  else
    fields.refuse(name, "use fp32, bf16 or fp16");
}

/// cartan's own names in a section: layers, kv_heads or kv-heads. Texts of lists are joined by blanks.
void take_own_keys(Fields& fields, const Json& object, std::string_view section) {
  train::Config unused;
  const std::vector<Option> options = config_options(unused);
  for (const auto& [name, value] : object.items()) {
    std::string key = fmt::format("{}.{}", section, name);
    std::replace(key.begin(), key.end(), '_', '-');
    const bool is_ours =
        std::any_of(options.begin(), options.end(), [&](const Option& o) { return o.key == key; });
    if (!is_ours || fields.find(name) == nullptr || fields.is_taken(name)) continue;
    if (!value.is_array()) {
      fields.take_if_said(name, key);
      continue;
    }
    std::string words;
    for (const Json& word : value) words += (words.empty() ? "" : " ") + scalar_text(word).value_or("");
    fields.take(name, key, words);
  }
}

void take_checkpoint(Fields& top, const Json& whole) {
  Fields block = top.object("checkpoint");
  block.apply(kCheckpoint);
  if (block.exists()) take_own_keys(block, whole["checkpoint"], "checkpoint");
  static constexpr std::array<Tuning, 4> tuning{{{"format", "HDF5"},
                                                 {"resume", "a run resumes by itself from run.dir"},
                                                 {"auto_resume", "a run resumes by itself from run.dir"},
                                                 {"save_optimizer", "checkpoints are complete"}}};
  block.apply(tuning);
  block.finish();
}

void take_restart(Fields& top) {
  const Json* value = top.find("elastic_restart");
  if (value == nullptr) return;
  const bool is_plain = value->is_boolean() || value->is_object();
  if (!is_plain) return top.refuse("elastic_restart", "expected true or false");
  const bool is_on =
      value->is_object() ? value->value("enabled", Json(true)) != Json(false) : value->get<bool>();
  top.confirm("elastic_restart",
              is_on ? "always so: a run resumes from run.dir on any mesh and number of ranks, "
                      "with --mesh.dp 0 or another mesh"
                    : "a run resumes on any mesh, and on another one only if told so");
}

}  // namespace

void translate_cluster(const Json& whole, Translation& to) {
  Fields top(&whole, "", to);
  Fields parallelism = top.object("parallelism");
  const Json* data = parallelism.find("data");
  if (data != nullptr && *data == -1) parallelism.ignore("data", "mesh.dp = 0: the ranks that are left");
  for (const SameAs& row : kParallelism)
    if (!parallelism.is_taken(row.name)) parallelism.apply(std::span(&row, 1));
  static constexpr std::array<Tuning, 2> always{
      {{"sequence", "always so with mesh.tp"}, {"sequence_parallel", "always so with mesh.tp"}}};
  parallelism.apply(always);
  for (const char* name : {"expert", "expert_parallel", "ep"}) {
    const auto width = parallelism.whole(name);
    if (width && *width > 1)
      parallelism.refuse(name, "cartan has no experts: remove it");
    else if (width)
      parallelism.ignore(name, "cartan has no experts");
  }
  parallelism.finish();

  take_checkpoint(top, whole);
  take_restart(top);
  if (const Json* precision = top.find("precision"); precision != nullptr && !precision->is_object()) {
    take_dtype(top, "precision", "precision.compute");
  } else if (precision != nullptr) {
    Fields block = top.object("precision");
    take_dtype(block, "compute", "precision.compute");
    take_dtype(block, "reduce", "precision.reduce");
    take_own_keys(block, *precision, "precision");
    block.finish();
  }
  take_dtype(top, "dtype", "precision.compute");
  top.apply(kTop);

  // Sections that people write around these keys, and cartan's own.
  for (const char* name : {"training", "train", "trainer", "optimizer", "batch", "scheduler"}) {
    const Json* value = top.find(name);
    if (value == nullptr || !value->is_object()) continue;
    Fields block = top.object(name);
    for (const SameAs& row : kTop) block.apply(std::span(&row, 1));
    take_dtype(block, "precision", "precision.compute");
    static const std::array<Fixed, 2> fixed{
        {{"type", "AdamW", "cartan has AdamW: use that"}, {"name", "adamw", "cartan has AdamW: use adamw"}}};
    if (std::string_view(name) == "optimizer") block.apply(fixed);
    take_own_keys(block, *value,
                  std::string_view(name) == "optimizer"   ? "optim"
                  : std::string_view(name) == "scheduler" ? "schedule"
                  : std::string_view(name) == "batch"     ? "batch"
                                                          : "run");
    block.finish();
  }
  for (const std::string& section : training_sections()) {
    const Json* value = whole.contains(section) ? top.find(section) : nullptr;
    if (section == "model" && value != nullptr && value->is_string()) {
      top.take("model", "model.preset", value->get<std::string>());
      continue;
    }
    if (value == nullptr || !value->is_object() || section == "checkpoint" || section == "precision" ||
        section == "batch")
      continue;
    Fields block = top.object(section);
    if (section == "data")
      block.apply(std::array<SameAs, 2>{{{"seq_length", "data.seq"}, {"sequence_length", "data.seq"}}});
    take_own_keys(block, *value, section);
    block.finish();
  }
  top.apply(kJobKeys);
  top.finish();
}

}  // namespace cartan::cli::foreign
