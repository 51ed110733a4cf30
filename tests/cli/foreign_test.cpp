// Configurations of others: what each format's keys become, what is listed and what is refused; hostile
// files. The files in foreign/ are written as their users write them.
#include <gmock/gmock.h>

#include <optional>
#include <random>

#include "cartan/core/file.hpp"
#include "cartan/core/text.hpp"
#include "cartan/optim/schedule.hpp"
#include "cli/foreign/batch.hpp"
#include "cli/foreign/document.hpp"
#include "cli/foreign/translate.hpp"
#include "cli/option_tables.hpp"
#include "cli/options.hpp"
#include "cli/program_run.hpp"
#include "cli/temporary_directory.hpp"

namespace cartan::cli {
namespace {

using foreign::parse_document;
using foreign::translate;
using foreign::Translation;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::UnorderedElementsAre;

using Words = std::vector<std::string>;

std::string sample(const std::string& name) { return std::string(CARTAN_FOREIGN_DIR) + "/" + name; }

/// "key = text" of every setting, in order; defaults of the format with a star.
std::vector<std::string> settings_of(const Translation& translation) {
  std::vector<std::string> lines;
  for (const foreign::Setting& setting : translation.settings)
    if (!setting.key.empty())
      lines.push_back((setting.foreign.empty() ? "* " : "") + setting.key + " = " + setting.text);
  return lines;
}

std::vector<std::string> names_of(const std::vector<foreign::Remark>& remarks) {
  std::vector<std::string> names;
  for (const foreign::Remark& remark : remarks) names.push_back(remark.foreign);
  return names;
}

std::vector<std::string> settings_of(const std::string& text) { return settings_of(translate(text, "f")); }
std::vector<std::string> refused_in(const std::string& text) { return translate(text, "f").refused; }

/// A whole file with one object of DeepSpeed's in it.
std::string deepspeed(const std::string& members) { return R"({"train_batch_size": 8, )" + members + "}"; }

std::string megatron(const std::string& members) {
  return R"({"tensor_model_parallel_size": 1, )" + members + "}";
}

TEST(Deepspeed, ARealFileBecomesSettings) {
  const Translation translation = translate(read_file(sample("ds_config.json")), "ds_config.json");
  EXPECT_EQ(translation.format, "DeepSpeed");
  EXPECT_THAT(translation.refused, IsEmpty());
  EXPECT_THAT(settings_of(translation),
              UnorderedElementsAre(
                  "batch.global = 32", "batch.micro = 4", "precision.compute = bf16", "optim.beta1 = 0.9",
                  "optim.beta2 = 0.95", "optim.eps = 1e-08", "optim.weight-decay = 0.1",
                  "schedule.kind = warmup-decay-lr", "optim.lr = 0.0006", "schedule.min-lr = 0",
                  "schedule.length = 10000", "schedule.warmup = 200", "schedule.warmup-type = linear",
                  "optim.clip = 0.5", "zero.stage = 2", "zero.bucket-mb = 762.939453125",
                  "zero.offload = states", "mesh.tp = 2", "mesh.pp = 2", "pipeline.cut = layers",
                  "recompute.policy = block", "run.log-every = 10"));
  EXPECT_THAT(
      names_of(translation.unused),
      AllOf(Contains("zero_optimization.overlap_comm"), Contains("zero_optimization.contiguous_gradients"),
            Contains("zero_optimization.allgather_bucket_size"),
            Contains("zero_optimization.offload_optimizer.pin_memory"), Contains("fp16.enabled"),
            Contains("activation_checkpointing.number_checkpoints")));
  ASSERT_EQ(translation.unknown.size(), 1u);
  EXPECT_EQ(translation.unknown[0].foreign, "gradient_cliping");
  EXPECT_EQ(translation.unknown[0].why, "did you mean gradient_clipping?");
}

TEST(Deepspeed, WhatIsNotSaidHasItsDefaults) {
  EXPECT_THAT(
      settings_of(R"({"train_batch_size": 8, "optimizer": {"type": "Adam"}, "zero_optimization": {"stage": 1},
                              "fp16": {"enabled": true}, "scheduler": {"type": "WarmupLR"}})"),
      UnorderedElementsAre("batch.global = 8", "precision.compute = fp16", "* precision.loss-scale = 0",
                           "* precision.loss-scale-power = 16", "* precision.loss-scale-window = 1000",
                           "* precision.loss-scale-hysteresis = 2", "* precision.loss-scale-min = 1",
                           "* optim.beta1 = 0.9", "* optim.beta2 = 0.999", "* optim.eps = 1e-08",
                           "* optim.weight-decay = 0", "schedule.kind = warmup-lr", "* optim.lr = 0.001",
                           "* schedule.min-lr = 0", "* schedule.warmup = 1000",
                           "* schedule.warmup-type = log", "* optim.clip = 1", "zero.stage = 1",
                           "* zero.bucket-mb = 1907.3486328125"));
  // Without an optimizer and a schedule the caller brings them: only the rate's course is known.
  EXPECT_THAT(settings_of(R"({"train_batch_size": 8})"),
              UnorderedElementsAre("batch.global = 8", "* precision.compute = fp32",
                                   "* schedule.kind = constant", "* optim.clip = 1", "* zero.stage = 0"));
  EXPECT_THAT(settings_of(deepspeed(R"("gradient_clipping": 0.0)")), Contains("optim.clip = 0"));
}

TEST(Deepspeed, AutoIsLeftToCartan) {
  const Translation translation = translate(read_file(sample("ds_auto.json")), "ds_auto.json");
  EXPECT_THAT(translation.refused, IsEmpty());
  EXPECT_THAT(translation.unknown, IsEmpty());
  EXPECT_THAT(settings_of(translation),
              UnorderedElementsAre("schedule.kind = warmup-lr", "* schedule.warmup-type = log",
                                   "zero.stage = 3", "zero.offload = all", "zero.offload-dir = /local_nvme",
                                   "run.log-every = 2000", "precision.loss-scale = 0",
                                   "precision.loss-scale-power = 16", "precision.loss-scale-window = 1000",
                                   "precision.loss-scale-hysteresis = 2", "precision.loss-scale-min = 1"));
  EXPECT_THAT(names_of(translation.unused),
              AllOf(Contains("train_batch_size"), Contains("gradient_clipping"), Contains("bf16.enabled"),
                    Contains("optimizer.params.betas")));
}

TEST(Deepspeed, RefusesWhatChangesTheNumbers) {
  const Translation translation = translate(read_file(sample("ds_refused.json")), "ds_refused.json");
  EXPECT_THAT(translation.refused,
              UnorderedElementsAre(HasSubstr("optimizer.type = Lamb"), HasSubstr("scheduler.type = OneCycle"),
                                   HasSubstr("zero_optimization.zero_quantized_gradients = true"),
                                   HasSubstr("amp = "), HasSubstr("sparse_attention = "),
                                   HasSubstr("elasticity = ")));
  EXPECT_THAT(names_of(translation.unused), Contains("progressive_layer_drop"));

  const auto adam = [](const std::string& params) {
    return refused_in(deepspeed(R"("optimizer": {"type": "Adam", "params": {)" + params + "}}"));
  };
  EXPECT_THAT(adam(R"("adam_w_mode": false, "weight_decay": 0.1)"), ElementsAre(HasSubstr("adam_w_mode")));
  EXPECT_THAT(adam(R"("adam_w_mode": false, "weight_decay": "auto")"), ElementsAre(HasSubstr("adam_w_mode")));
  EXPECT_THAT(adam(R"("adam_w_mode": false, "weight_decay": 0)"), IsEmpty());
  EXPECT_THAT(adam(R"("adam_w_mode": true, "weight_decay": 0.1)"), IsEmpty());
  EXPECT_THAT(adam(R"("bias_correction": false)"), ElementsAre(HasSubstr("bias_correction")));
  EXPECT_THAT(adam(R"("amsgrad": true)"), ElementsAre(HasSubstr("amsgrad")));
  EXPECT_THAT(adam(R"("max_grad_norm": 1.0)"), ElementsAre(HasSubstr("gradient_clipping")));
  EXPECT_THAT(adam(R"("betas": 0.9)"), ElementsAre(HasSubstr("expected two numbers")));

  for (const char* members :
       {R"("fp16": {"enabled": true}, "bf16": {"enabled": true})",
        R"("fp16": {"enabled": true, "consecutive_hysteresis": true})",
        R"("fp16": {"enabled": true, "fp16_master_weights_and_grads": true})",
        R"("bf16": {"enabled": true, "bf16_master_weights_and_grads": true})",
        R"("torch_autocast": {"enabled": true, "dtype": "bfloat16"})",
        R"("curriculum_learning": {"enabled": true})", R"("communication_data_type": "int8")",
        R"("compression_training": {"weight_quantization": {"shared_parameters": {"enabled": true}}})",
        R"("gradient_allreduce_op": "sum")", R"("zero_optimization": {"offload_param": {"device": "tape"}})"})
    EXPECT_EQ(refused_in(deepspeed(members)).size(), 1u) << members;
}

TEST(Deepspeed, OtherSpellingsMeanTheSame) {
  EXPECT_THAT(settings_of(deepspeed(R"("bfloat16": {"enabled": true})")),
              Contains("precision.compute = bf16"));
  EXPECT_THAT(settings_of(deepspeed(R"("zero_optimization": true)")), Contains("zero.stage = 1"));
  EXPECT_THAT(settings_of(deepspeed(R"("zero_optimization": {"stage": 2, "cpu_offload": true})")),
              Contains("zero.offload = states"));
  EXPECT_THAT(settings_of(deepspeed(R"("tensor_parallel": {"tp": {"tp_size": 4}})")),
              Contains("mesh.tp = 4"));
  EXPECT_THAT(settings_of(deepspeed(R"("tensor_parallel": {"autotp_size": 0})")),
              Not(Contains(HasSubstr("mesh.tp"))));
  EXPECT_THAT(settings_of(deepspeed(R"("zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"},
                                      "offload_optimizer": {"device": "cpu"}})")),
              AllOf(Contains("zero.offload = all"), Not(Contains("zero.offload = states"))));
  EXPECT_THAT(settings_of(deepspeed(R"("sequence_parallel_size": 2)")),
              AllOf(Contains("mesh.cp = 2"), Contains("context.exchange = all-to-all")));
  EXPECT_THAT(settings_of(deepspeed(R"("zero_optimization": {"stage": 3, "mics_shard_size": 4})")),
              Contains("zero.shard = 4"));
}

TEST(Deepspeed, TheCosineScheduleScalesTheRate) {
  const std::string scheduler = R"("scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 40,
      "warmup_num_steps": 8, "warmup_min_ratio": 0.25, "cos_min_ratio": 0.125, "warmup_type": "linear"}})";
  EXPECT_THAT(settings_of(deepspeed(R"("optimizer": {"type": "Adam", "params": {"lr": 0.5}}, )" + scheduler)),
              AllOf(Contains("schedule.kind = warmup-cosine-lr"), Contains("optim.lr = 0.5"),
                    Contains("schedule.warmup-begin = 0.125"), Contains("schedule.min-lr = 0.0625"),
                    Contains("schedule.length = 40"), Contains("schedule.warmup = 8")));
  EXPECT_THAT(
      refused_in(deepspeed(R"("optimizer": {"type": "Adam", "params": {"lr": "auto"}}, )" + scheduler)),
      ElementsAre(HasSubstr("give it a number")));
}

foreign::Translation with_batch(std::optional<Index> global, std::optional<Index> micro,
                                std::optional<Index> accumulation) {
  foreign::Translation translation;
  translation.path = "f";
  translation.batch = {{"G", global}, {"M", micro}, {"A", accumulation}};
  return translation;
}

std::string completed(std::optional<Index> global, std::optional<Index> micro,
                      std::optional<Index> accumulation, Index replicas) {
  Problems problems;
  const auto settings = complete_batch(with_batch(global, micro, accumulation), replicas, problems);
  if (!problems.empty()) return problems.lines()[0];
  return settings.empty() ? "" : settings[0].key + " = " + settings[0].text;
}

TEST(Batch, WhatIsMissingFollowsAsInDeepspeed) {
  EXPECT_EQ(completed(32, 4, 2, 4), "");
  EXPECT_THAT(completed(32, 4, 2, 2),
              HasSubstr("G = 32 is not M * A * replicas of the model = 4 * 2 * 2 = 16"));
  EXPECT_EQ(completed(32, std::nullopt, 2, 4), "batch.micro = 4");
  EXPECT_THAT(completed(32, std::nullopt, 3, 4),
              HasSubstr("not divisible by A * replicas of the model = 3 * 4"));
  EXPECT_EQ(completed(std::nullopt, 4, 2, 4), "batch.global = 32");
  EXPECT_EQ(completed(std::nullopt, 4, std::nullopt, 4), "batch.global = 16");
  EXPECT_EQ(completed(32, 4, std::nullopt, 4), "");
  EXPECT_EQ(completed(32, std::nullopt, std::nullopt, 4), "");
  EXPECT_EQ(completed(std::nullopt, std::nullopt, 3, 4), "");
  const Index large = Index{1} << 30;
  EXPECT_THAT(completed(7, large, large, large), HasSubstr("is not"));
}

TEST(Batch, IsCheckedForTheRanksOfAJob) {
  const TemporaryDirectory directory;
  const std::string all = directory.file(
      "all.json",
      R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2})");
  const auto config = [&](const std::string& file, Words words) {
    words.insert(words.begin(), {"config", "--from", file, "--data.train", "corpus"});
    return run(words);
  };
  EXPECT_EQ(config(all, {"--ranks", "4"}).code, 0);
  EXPECT_EQ(config(all, {"--ranks", "8", "--tp", "2"}).code, 0);
  const Outcome wrong = config(all, {"--ranks", "2"});
  EXPECT_EQ(wrong.code, 78);
  EXPECT_THAT(wrong.err,
              AllOf(HasSubstr("all.json: train_batch_size = 32 is not"), HasSubstr("4 * 2 * 2 = 16")));
  // Who gives the batch on the command line takes it over.
  EXPECT_EQ(config(all, {"--ranks", "2", "--batch.global", "16"}).code, 0);
  // Without ranks the file says itself how many replicas it means.
  const Outcome alone = config(all, {});
  EXPECT_EQ(alone.code, 0) << alone.err;
  EXPECT_THAT(alone.out, HasSubstr("\ndp = 4 "));

  const std::string micro = directory.file("micro.json", R"({"train_micro_batch_size_per_gpu": 4})");
  const Outcome unknown = config(micro, {});
  EXPECT_EQ(unknown.code, 78);
  EXPECT_THAT(unknown.err, HasSubstr("give --mesh.dp or --batch.global, or --ranks"));
  EXPECT_THAT(config(micro, {"--ranks", "6"}).out,
              HasSubstr("\nglobal = 24                             # " + micro +
                        ": train_micro_batch_size_per_gpu and 6 replicas"));
  EXPECT_THAT(config(micro, {"--mesh.dp", "2"}).out,
              AllOf(HasSubstr("\nglobal = 8 "),
                    HasSubstr("#   train_micro_batch_size_per_gpu and 2 replicas  -> batch.global = 8\n")));
}

TEST(Megatron, ARealFileBecomesSettings) {
  const Translation translation = translate(read_file(sample("megatron.json")), "megatron.json");
  EXPECT_EQ(translation.format, "Megatron-LM");
  EXPECT_THAT(translation.refused, IsEmpty());
  EXPECT_THAT(translation.differing, IsEmpty());
  EXPECT_THAT(
      settings_of(translation),
      UnorderedElementsAre(
          "batch.global = 128", "batch.micro = 1", "mesh.tp = 2", "mesh.pp = 2", "mesh.cp = 2",
          "data.seq = 8192", "run.steps = 20000", "run.log-every = 5", "checkpoint.every = 500",
          "schedule.min-lr = 3e-05", "run.dir = runs/llama", "model.layers = 16", "model.hidden = 2048",
          "model.heads = 32", "model.ffn = 8192", "model.vocab = 128256", "model.rope-theta = 500000",
          "model.norm-eps = 1e-05", "model.kv-heads = 8", "model.tied = true", "model.rope-scaling = llama3",
          "model.rope-factor = 32", "* model.init-std = 0.02", "precision.compute = bf16",
          "optim.lr = 0.0003", "optim.beta1 = 0.9", "optim.beta2 = 0.95", "* optim.eps = 1e-08",
          "optim.weight-decay = 0.1", "optim.clip = 1", "schedule.kind = cosine", "schedule.length = 20000",
          "schedule.warmup = 200", "* schedule.warmup-begin = 0", "zero.stage = 1",
          "pipeline.schedule = interleaved", "pipeline.chunks = 2", "context.exchange = all-to-all",
          "recompute.policy = attention",
          "data.train = 0.7 corpus/a_text_document 0.3 corpus/b_text_document", "data.valid-fraction = 0.02",
          "run.eval-every = 1000", "run.eval-batches = 10", "run.seed = 42", "data.seed = 42"));
  EXPECT_THAT(names_of(translation.unknown), ElementsAre("no_such_argument"));
}

TEST(Megatron, RefusesOtherArchitecturesAndTakesDashes) {
  const Translation translation = translate(read_file(sample("megatron_gpt.json")), "megatron_gpt.json");
  EXPECT_THAT(settings_of(translation), AllOf(Contains("model.layers = 12"), Contains("batch.global = 64"),
                                              Contains("data.seq = 1024")));
  EXPECT_THAT(translation.refused,
              UnorderedElementsAre(HasSubstr("swiglu = false"), HasSubstr("normalization = LayerNorm"),
                                   HasSubstr("position_embedding_type = learned_absolute"),
                                   HasSubstr("attention_dropout = 0.1"),
                                   HasSubstr("lr_decay_style = inverse-square-root"),
                                   HasSubstr("load = checkpoints/gpt"), HasSubstr("num_experts = 8"),
                                   HasSubstr("rampup_batch_size = [16,8,300000]")));
  EXPECT_THAT(names_of(translation.differing), ElementsAre("hidden_dropout"));
}

TEST(Megatron, WhatIsNotSaidHasItsDefaults) {
  EXPECT_THAT(
      settings_of(R"({"num_layers": 4, "hidden_size": 1024, "fp16": true, "lr": 0.001, "train_iters": 100})"),
      UnorderedElementsAre(
          "run.steps = 100", "model.layers = 4", "model.hidden = 1024", "* model.tied = true",
          "* model.ffn = 2688", "* model.norm-eps = 1e-05", "* model.rope-theta = 10000",
          "* model.init-std = 0.02", "precision.compute = fp16", "* precision.loss-scale = 0",
          "* precision.loss-scale-power = 32", "* precision.loss-scale-window = 1000",
          "* precision.loss-scale-hysteresis = 2", "* precision.loss-scale-min = 1", "optim.lr = 0.001",
          "* optim.beta1 = 0.9", "* optim.beta2 = 0.999", "* optim.eps = 1e-08",
          "* optim.weight-decay = 0.01", "* optim.clip = 1", "* schedule.kind = linear",
          "* schedule.warmup = 0", "* schedule.warmup-begin = 0"));
}

TEST(Megatron, TakesWhatIsExactOnly) {
  EXPECT_THAT(refused_in(megatron(R"("fp16": true, "initial_loss_scale": 1000)")),
              ElementsAre(HasSubstr("power of two")));
  EXPECT_THAT(settings_of(megatron(R"("fp16": true, "initial_loss_scale": 65536)")),
              Contains("precision.loss-scale-power = 16"));
  EXPECT_THAT(refused_in(megatron(R"("lr_decay_style": "WSD", "lr_wsd_decay_iters": 10)")),
              ElementsAre(HasSubstr("lr_wsd_decay_style says linear")));
  EXPECT_THAT(settings_of(megatron(
                  R"("lr_decay_style": "WSD", "lr_wsd_decay_iters": 10, "lr_wsd_decay_style": "linear")")),
              AllOf(Contains("schedule.kind = wsd"), Contains("schedule.decay-steps = 10")));
  EXPECT_THAT(refused_in(megatron(R"("lr_warmup_fraction": 0.01, "train_iters": 150)")),
              ElementsAre(HasSubstr("no whole number of updates")));
  EXPECT_THAT(settings_of(megatron(R"("lr_warmup_fraction": 0.07, "train_iters": 100)")),
              Contains("schedule.warmup = 7"));
  EXPECT_THAT(refused_in(megatron(R"("start_weight_decay": 0.0, "weight_decay": 0.1)")),
              ElementsAre(HasSubstr("use weight_decay alone")));
  EXPECT_THAT(refused_in(megatron(R"("fp8": "e4m3", "bf16": true)")), ElementsAre(HasSubstr("use hybrid")));
  EXPECT_THAT(settings_of(megatron(R"("use_megatron_fsdp": true, "use_distributed_optimizer": true,
                                     "data_parallel_sharding_strategy": "optim_grads_params")")),
              AllOf(Contains("zero.stage = 3"), Not(Contains("zero.stage = 1"))));
  EXPECT_THAT(settings_of(megatron(R"("recompute_granularity": "full", "recompute_method": "block",
                                     "recompute_num_layers": 3)")),
              AllOf(Contains("recompute.policy = block"), Contains("recompute.layers = 0-2")));
  EXPECT_THAT(refused_in(R"({"num-layers": 4, "num_layers": 5})"),
              Contains(HasSubstr("num_layers stands twice")));
  EXPECT_THAT(
      settings_of("model:\n  num_layers: 4\n  hidden_size: 64\noptimizer:\n  lr: 0.5\n  clip_grad: 2\n"),
      AllOf(Contains("model.layers = 4"), Contains("optim.lr = 0.5"), Contains("optim.clip = 2")));
  EXPECT_THAT(refused_in(megatron(R"("data_path": "a", "train_data_path": "b")")),
              ElementsAre(HasSubstr("data_path = a and train_data_path = b both mean data.train")));
}

TEST(Cluster, ARealFileBecomesSettings) {
  const Translation translation = translate(read_file(sample("cluster.yaml")), "cluster.yaml");
  EXPECT_EQ(translation.format, "a cluster");
  EXPECT_THAT(translation.refused, IsEmpty());
  EXPECT_THAT(
      settings_of(translation),
      UnorderedElementsAre("mesh.tp = 4", "mesh.pp = 2", "mesh.dp = 4", "checkpoint.every = 500",
                           "checkpoint.keep = 2", "checkpoint.async = true", "run.dir = runs/llama",
                           "precision.compute = bf16", "run.steps = 2000", "batch.global = 64",
                           "optim.lr = 0.0003", "model.preset = smollm2-135m", "model.rope-theta = 100000",
                           "data.seq = 512", "data.train = 0.7 corpus/a 0.3 corpus/b"));
  EXPECT_THAT(names_of(translation.unknown), UnorderedElementsAre("training.mystery", "priority"));
  EXPECT_THAT(names_of(translation.unused), UnorderedElementsAre("name", "nodes", "gpus_per_node"));
}

TEST(Cluster, TakesOwnKeysAndWhatPeopleWrite) {
  EXPECT_THAT(
      settings_of("parallelism: {data: auto, tp: 2, zero: 1}\nprecision: {compute: bf16, reduce: bf16}\n"
                  "optimizer: {name: adamw, lr: 1e-4, betas: [0.9, 0.95]}\nzero: {bucket_mb: 32}\n"),
      UnorderedElementsAre("mesh.tp = 2", "zero.stage = 1", "precision.compute = bf16",
                           "precision.reduce = bf16", "optim.lr = 0.0001", "zero.bucket-mb = 32"));
  EXPECT_THAT(refused_in("parallelism: {tensor: 2, tp: 4}"),
              ElementsAre(HasSubstr("parallelism.tensor = 2 and parallelism.tp = 4 both mean mesh.tp")));
  EXPECT_THAT(settings_of("elastic_restart: yes\ncheckpoint:\n  async_save: off\nmodel: llama3-8b\n"),
              UnorderedElementsAre("checkpoint.async = false", "model.preset = llama3-8b"));
  EXPECT_THAT(refused_in("parallelism: {tensor: [1, 2]}"), ElementsAre(HasSubstr("expected a single value")));
  EXPECT_THAT(refused_in("parallelism: {expert: 4}"), ElementsAre(HasSubstr("cartan has no experts")));
  EXPECT_THAT(refused_in("parallelism: 8"), ElementsAre(HasSubstr("expected an object")));
}

TEST(Translate, KnowsTheFormatByItsKeys) {
  EXPECT_EQ(translate("zero_optimization: {stage: 1}", "a.yaml").format, "DeepSpeed");
  EXPECT_EQ(translate(R"({"parallelism": {"tensor": 2}})", "a.json").format, "a cluster");
  EXPECT_EQ(translate("--num-layers: 4\nbf16: true\n", "a").format, "Megatron-LM");
  EXPECT_THROW(translate(R"({"hello": 1})", "a.json"), ConfigError);
  EXPECT_THROW(translate(R"({"train_batch_size": 1, "num_layers": 1})", "a.json"), ConfigError);
}

/// The message of the DataError for a text.
std::string fault_of(const std::string& text) {
  try {
    parse_document(text, "f");
  } catch (const DataError& error) {
    return error.what();
  }
  return {};
}

TEST(Document, HostileTextsAreRefusedWithTheirPlace) {
  EXPECT_THAT(fault_of("{\"a\": 1,\n \"b\": }"), HasSubstr("f: not valid JSON near line 2"));
  EXPECT_THAT(fault_of(R"({"a": 1, "a": 2})"), HasSubstr("the key a stands twice"));
  EXPECT_THAT(fault_of(R"({"a": {"b": 1, "b": 2}})"), HasSubstr("the key b stands twice"));
  EXPECT_THAT(fault_of(R"({"a": NaN})"), HasSubstr("not valid JSON"));
  EXPECT_THAT(fault_of(R"({"a": 1e999})"), HasSubstr("not valid JSON"));
  EXPECT_THAT(fault_of("{\"a\": \"\xff\"}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(fault_of("[1, 2]"), HasSubstr("found array"));
  EXPECT_THAT(fault_of(""), HasSubstr("found nothing"));
  EXPECT_THAT(fault_of("hello"), HasSubstr("found string"));
  EXPECT_THAT(fault_of(std::string("a: \0b", 5)), HasSubstr("zero bytes"));
  EXPECT_THAT(fault_of("a: 1\nb: [1\n"), HasSubstr("not valid YAML"));
  EXPECT_THAT(fault_of("a: 1\na: 2\n"), HasSubstr("stands twice"));
  EXPECT_THAT(fault_of("a: &x [1]\nb: *x\n"), HasSubstr("f:2: aliases"));
  EXPECT_THAT(fault_of("a: 1\n---\nb: 2\n"), HasSubstr("several YAML documents"));
  EXPECT_THAT(fault_of("? [1]\n: 2\n"), HasSubstr("expected a name as key"));

  const std::size_t deep = 200000;
  EXPECT_THAT(fault_of("{\"a\": " + std::string(deep, '[')), HasSubstr("nested deeper than 32"));
  EXPECT_THAT(fault_of("a: " + std::string(deep, '[')), HasSubstr("nested deeper than 32"));
  EXPECT_THAT(fault_of("{\"a\": [" + std::string(deep, '1')), HasSubstr("not valid JSON"));
  std::string many = "{\"a\": [0";
  for (int i = 0; i < 20000; ++i) many += ",0";
  EXPECT_THAT(fault_of(many + "]}"), HasSubstr("more than 10000 values"));
  EXPECT_THAT(fault_of("{\"a\": \"" + std::string(2 << 20, 'x') + "\"}"), HasSubstr("2.00 MiB long"));
  // The bomb of nested aliases ends at the first one.
  EXPECT_THAT(fault_of("a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n"), HasSubstr("aliases"));
}

TEST(Document, JsonMayHaveComments) {
  EXPECT_EQ(parse_document("{\"a\": 1, // one\n /* two */ \"b\": 2}", "f").size(), 2u);
  EXPECT_THAT(fault_of("{\"a\": 1, // one\n oops}"), HasSubstr("near line 2"));
}

TEST(Document, ReadsYamlScalars) {
  const Json top =
      parse_document("a: 1e-4\nb: '8'\nc: 5e8\nd: ~\ne: yes\nf: bf16\ng: -3\nh: .nan\ni: inf\nj:\n", "f");
  EXPECT_EQ(top["a"], 1e-4);
  EXPECT_EQ(top["b"], "8");
  EXPECT_EQ(top["c"], 5e8);
  EXPECT_TRUE(top["d"].is_null());
  EXPECT_EQ(top["e"], true);
  EXPECT_EQ(top["f"], "bf16");
  EXPECT_EQ(top["g"], -3);
  EXPECT_TRUE(top["h"].is_number_float());
  EXPECT_EQ(top["i"], "inf");
  EXPECT_TRUE(top["j"].is_null());
}

TEST(Translate, WrongValuesNameTheForeignKey) {
  const TemporaryDirectory directory;
  const auto failure = [&](const std::string& text) {
    const Outcome outcome = run({"config", "--from", directory.file("f.json", text)});
    EXPECT_EQ(outcome.code, 78) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    return outcome.err;
  };
  EXPECT_THAT(failure(R"({"zero_optimization": {"stage": 4}})"),
              HasSubstr("f.json: zero_optimization.stage): must be a whole number from 0 to 3"));
  EXPECT_THAT(failure(R"({"zero_optimization": []})"),
              HasSubstr("zero_optimization = []: expected an object"));
  EXPECT_THAT(failure(R"({"train_batch_size": -8})"),
              HasSubstr("train_batch_size = -8: expected a whole number"));
  EXPECT_THAT(failure(R"({"train_batch_size": 1e300})"), HasSubstr("train_batch_size = 1e+300: expected"));
  EXPECT_THAT(failure(R"({"train_batch_size": 0})"), HasSubstr("expected a whole number from 1"));
  EXPECT_THAT(failure(R"({"train_batch_size": 8, "fp16": {"enabled": 1}})"),
              HasSubstr("expected true or false"));
  EXPECT_THAT(failure(R"({"train_batch_size": 8, "gradient_clipping": "much"})"),
              HasSubstr("optim.clip = much"));
  EXPECT_THAT(failure("parallelism: {tensor: .nan}"), HasSubstr("mesh.tp = nan"));
  EXPECT_THAT(failure("parallelism: {tensor: 99999999999999999999}"), HasSubstr("mesh.tp = 1e+20"));
}

TEST(From, IsBelowFilesAndTheCommandLine) {
  const TemporaryDirectory directory;
  const std::string from = directory.file("ds.json", R"({"train_batch_size": 8, "gradient_clipping": 0.5,
      "optimizer": {"type": "AdamW", "params": {"lr": 0.1, "eps": 1e-6, "weight_decay": 0.0}}})");
  const std::string ini = directory.file("a.ini", "[optim]\nlr = 0.2\nclip = 2\n");
  for (const Words& words : {Words{"config", "--config", ini, "--optim.lr", "0.3", "--from", from},
                             Words{"config", "--from", from, "--optim.lr=0.3", "--config", ini}}) {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, AllOf(HasSubstr("\nlr = 0.3                                # command line\n"),
                                   HasSubstr("\nclip = 2                                # " + ini + ":3\n"),
                                   HasSubstr("# " + from + ": optimizer.params.eps\n"),
                                   HasSubstr("# " + from + ": default of DeepSpeed\n")));
  }
}

TEST(From, ThePrintedIniReadsBack) {
  const TemporaryDirectory directory;
  for (const char* name : {"ds_config.json", "ds_auto.json", "megatron.json", "cluster.yaml"}) {
    const Outcome first = run({"config", "--from", sample(name)});
    ASSERT_EQ(first.code, 0) << first.err;
    EXPECT_THAT(first.out, AllOf(HasSubstr("# taken:"), HasSubstr("# without meaning here:")));
    const Outcome second = run({"config", "--config", directory.file("a.ini", first.out)});
    ASSERT_EQ(second.code, 0) << second.err;
    const auto values = [](const std::string& text) {
      std::string kept;
      for (const std::string& line : split(text, '\n'))
        if (!line.starts_with("#")) kept += line.substr(0, line.find(" # ")) + "\n";
      return kept;
    };
    EXPECT_EQ(values(second.out), values(first.out)) << name;
  }
}

TEST(From, PlanTakesTheStagesAndTheBatch) {
  const Outcome outcome = run({"plan", "--bubble", "--json", "--from", sample("megatron.json")});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const Json plan = parse_json(outcome.out, "stdout");
  EXPECT_EQ(plan.at("stages"), 2);
  EXPECT_EQ(plan.at("micro_batches"), 128);
}

TEST(From, CommentsCannotBecomeLines) {
  const TemporaryDirectory directory;
  const std::string from = directory.file(
      "ds.json", R"({"train_batch_size": 8, "a\n[run]\nsteps = 7": "b\nc", "steps_per_print": 3})");
  const Outcome outcome = run({"config", "--from", from});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr(R"(a\x0a[run]\x0asteps = 7 = b\x0ac)"), HasSubstr("\nsteps = 100 ")));
}

TEST(From, ARefusalListsEverythingOnce) {
  const Outcome outcome = run({"config", "--from", sample("ds_refused.json"), "--run.steps", "0"});
  EXPECT_EQ(outcome.code, 78);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("7 problems"), HasSubstr("optimizer.type = Lamb"),
                    HasSubstr("run.steps = 0 (command line)"),
                    HasSubstr("\n  taken: train_micro_batch_size_per_gpu, zero_optimization.stage\n"),
                    HasSubstr("\n  without meaning here: zero_optimization.overlap_comm")));
  EXPECT_EQ(run({"config", "--from", "nowhere.json"}).code, 66);
  EXPECT_EQ(run({"config", "--from"}).code, 64);
  EXPECT_EQ(run({"config", "--from", ""}).code, 66);
  EXPECT_EQ(run({"tokenize", "--from", "a"}).code, 64);
  const Outcome broken = run({"config", "--from", sample("../options_test.cpp")});
  EXPECT_EQ(broken.code, 65) << broken.err;
}

TEST(From, IsInTheHelpOfWhoTakesIt) {
  for (const char* command : {"config", "train", "verify", "plan"})
    EXPECT_THAT(run({command, "--help"}).out, HasSubstr("\n  --from FILE")) << command;
  EXPECT_THAT(run({"tokenize", "--help"}).out, Not(HasSubstr("--from")));
}

/// The configuration that a file becomes; nothing where it is refused.
std::optional<train::Config> config_of(const Json& file) {
  const TemporaryDirectory directory;
  const CommandSpec spec{.name = "config", .uses = training_sections(), .translates = true};
  try {
    return parse(spec, Words{"--from", directory.file("f.json", file.dump())}).config;
  } catch (const ConfigError&) {
    return std::nullopt;
  }
}

/// A file that asks for the schedule of one of the golden tables.
Json file_of(const Json& table) {
  Json params = table.at("params");
  if (table.at("family") == "deepspeed")
    return {{"train_batch_size", 8},
            {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", table.at("base_lr")}}}}},
            {"scheduler", {{"type", table.at("name")}, {"params", params}}}};
  Json file{{"train_iters", 1000},
            {"lr", params.at("max_lr")},
            {"min_lr", params.at("min_lr")},
            {"lr_warmup_init", params.at("init_lr")},
            {"lr_warmup_iters", params.at("lr_warmup_steps")},
            {"lr_decay_iters", params.at("lr_decay_steps")},
            {"lr_decay_style", params.at("lr_decay_style")}};
  if (params.contains("wsd_decay_steps")) {
    file["lr_wsd_decay_iters"] = params.at("wsd_decay_steps");
    file["lr_wsd_decay_style"] = params.at("lr_wsd_decay_style");
  }
  return file;
}

TEST(Schedules, HaveTheRatesOfTheOthersOrAreRefused) {
  const Json golden = read_json(CARTAN_GOLDEN_DIR "/lr_schedules.json");
  int exact = 0, refused = 0;
  for (const Json& table : golden.at("tables")) {
    if (table.at("family") == "hf") continue;
    const auto config = config_of(file_of(table));
    if (!config) {
      ++refused;
      continue;
    }
    Index step = 0;
    for (const Json& rate : table.at("lr")) {
      const double expected = rate;
      EXPECT_NEAR(optim::learning_rate(config->schedule, config->optim.lr, step, config->run.steps), expected,
                  1e-12 * expected)
          << table.at("params") << " update " << step;
      ++step;
    }
    ++exact;
  }
  EXPECT_EQ(exact, 9);    // DeepSpeed's seven, Megatron-LM's linear and cosine
  EXPECT_EQ(refused, 2);  // a WSD that decays otherwise, and the inverse square root
}

/// Every place in the tree, objects' members and lists' elements.
void collect_places(const Json& value, const Json::json_pointer& at,
                    std::vector<Json::json_pointer>& places) {
  places.push_back(at);
  if (value.is_object())
    for (const auto& [name, member] : value.items()) collect_places(member, at / name, places);
  if (value.is_array())
    for (std::size_t i = 0; i < value.size(); ++i) collect_places(value[i], at / i, places);
}

/// The error's exit code, 0 for a configuration; anything else fails the test.
int code_of(const std::string& path) {
  const CommandSpec spec{.name = "config", .uses = training_sections(), .translates = true};
  try {
    Parsed parsed = parse(spec, Words{"--from", path});
    complete_batch_without_ranks(parsed);
    EXPECT_THAT(to_ini(parsed), HasSubstr("[model]"));
    return 0;
  } catch (const Error& error) {
    return static_cast<int>(error.code());
  }
}

TEST(Fuzz, AnyValueAnywhereGivesAnErrorOrAConfiguration) {
  const TemporaryDirectory directory;
  const std::vector<Json> odd{
      nullptr, true, -1, 1e300, "auto", "text", "[[", Json::array(), Json::object(), Json{{"enabled", "x"}}};
  int refused = 0, done = 0;
  for (const char* name : {"ds_config.json", "ds_auto.json", "ds_refused.json", "megatron.json",
                           "megatron_gpt.json", "cluster.yaml"}) {
    const Json whole = parse_document(read_file(sample(name)), name);
    std::vector<Json::json_pointer> places;
    collect_places(whole, Json::json_pointer(), places);
    for (const Json::json_pointer& place : places) {
      for (const Json& value : odd) {
        Json changed = whole;
        changed[place] = value;
        const int code = code_of(directory.file("f.json", changed.dump()));
        EXPECT_TRUE(code == 0 || code == 65 || code == 78) << code << " " << changed.dump();
        ++(code == 0 ? done : refused);
      }
    }
  }
  EXPECT_GT(refused, 500);
  EXPECT_GT(done, 500);
}

TEST(Fuzz, DamagedBytesGiveAnErrorOrAConfiguration) {
  const TemporaryDirectory directory;
  std::mt19937 random(7);
  int refused = 0;
  for (const char* name : {"ds_config.json", "megatron.json", "cluster.yaml"}) {
    const std::string good = read_file(sample(name));
    for (int i = 0; i < 300; ++i) {
      std::string text = good;
      for (std::size_t k = 0; k < 1 + i % 3U; ++k) {
        const std::size_t at = random() % text.size();
        if (i % 2 == 0)
          text[at] = static_cast<char>(random());
        else
          text.erase(at, 1 + random() % 40);
      }
      const int code = code_of(directory.file("f", text));
      EXPECT_TRUE(code == 0 || code == 65 || code == 78) << code << " " << text;
      refused += code != 0;
    }
  }
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace cartan::cli
