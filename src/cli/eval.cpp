// `cartan eval`: loss and perplexity of a checkpoint.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cartan/comm/mesh_groups.hpp"
#include "cartan/core/json.hpp"
#include "cartan/core/narrow.hpp"
#include "cartan/store/safetensors.hpp"
#include "cartan/train/evaluator.hpp"
#include "cartan/train/run_device.hpp"
#include "cartan/train/text_sources.hpp"
#include "cli/command.hpp"
#include "cli/model_tokenizer.hpp"

namespace cartan::cli {
namespace {

using IdLists = std::vector<std::vector<std::int32_t>>;

IdLists read_id_lists(const std::string& path) {
  const Json json = read_json(path);
  try {
    return json.get<IdLists>();
  } catch (const nlohmann::json::exception& error) {
    throw DataError("{}: expected a JSON list of lists of token ids: {}", path, error.what());
  }
}

Json to_json(const train::LossSum& sum) {
  return Json{{"loss", sum.mean()}, {"perplexity", std::exp(sum.mean())}, {"targets", sum.targets}};
}

/// One tensor `logits` [N, T, V] where all lists have the same length, else `logits.0`, `logits.1`, ... [T,
/// V].
void write_logits(const std::string& path, const IdLists& lists,
                  const std::vector<train::SequenceResult>& results, Index vocab) {
  std::vector<store::NamedTensor> tensors;
  bool equal = true;
  for (const auto& list : lists) equal = equal && list.size() == lists.front().size();
  std::vector<float> joined;
  if (equal) {
    for (const train::SequenceResult& result : results)
      joined.insert(joined.end(), result.logits.begin(), result.logits.end());
    tensors.push_back({"logits",
                       DType::f32,
                       {static_cast<Index>(lists.size()), static_cast<Index>(lists.front().size()), vocab},
                       std::as_bytes(std::span(joined))});
  } else {
    for (std::size_t i = 0; i < results.size(); ++i)
      tensors.push_back({fmt::format("logits.{}", i),
                         DType::f32,
                         {static_cast<Index>(lists[i].size()), vocab},
                         std::as_bytes(std::span(results[i].logits))});
  }
  store::write_safetensors(path, tensors);
}

class Eval : public Command {
 public:
  CommandSpec spec() override {
    return {
        .name = "eval",
        .sentence = "loss and perplexity of a model on a data set or on given token ids",
        .usage = "--from CHECKPOINT|RUN_DIR|FOLDER (--data.valid PREFIX... | --ids FILE) [--json]",
        .examples = {"cartan eval --from runs/quickstart --data.valid build/quickstart/data --seq 128",
                     "mpirun -n 2 cartan eval --from runs/a/checkpoints/step-100.h5 --ids ids.json --json"},
        .uses = {"data.valid", "data.seq", "data.tokenizer", "data.json-key", "data.template", "data.cache",
                 "data.raw-type", "data.raw-end", "run.device", "run.threads", "precision.compute"},
        .options = {{.key = "from",
                     .target = &from_,
                     .help = "a checkpoint, a run directory (its newest good one), or a Hugging Face folder",
                     .value_name = "PATH",
                     .is_required = true},
                    {.key = "ids",
                     .target = &ids_,
                     .help = "a JSON file: a list of lists of token ids",
                     .value_name = "FILE",
                     .may_be_empty = true},
                    {.key = "samples",
                     .target = &samples_,
                     .help = "samples of the data set, in stored order; 0: all",
                     .range = at_least(0)},
                    {.key = "logits",
                     .target = &logits_,
                     .help = "with --ids: write the logits to this safetensors file",
                     .value_name = "FILE",
                     .may_be_empty = true},
                    {.key = "json", .target = &json_, .help = "print one JSON object", .is_flag = true}},
        .exit_codes = {ExitCode::done, ExitCode::usage, ExitCode::bad_data, ExitCode::missing_input,
                       ExitCode::environment, ExitCode::io, ExitCode::configuration}};
  }
  bool needs_mpi() const override { return true; }

  int run(Parsed& parsed, comm::Session* session) override {
    const train::Config& config = parsed.config;
    if (ids_.empty() == config.data.valid.empty())
      throw UsageError("cartan eval needs either --data.valid PREFIX or --ids FILE");
    if (!logits_.empty() && ids_.empty()) throw UsageError("--logits goes with --ids");
    comm::Mesh mesh(*session, comm::resolve_mesh({}, session->world_size()));
    const auto device = train::make_run_device(config, *session);
    const train::LoadedModel model =
        train::load_model(from_, dtype_from_name(config.precision.compute), *device, mesh.world());
    Json result{{"checkpoint", model.path.string()}, {"step", model.run.step}};
    if (ids_.empty())
      result.update(evaluate_data(parsed, model, *device, mesh));
    else
      result.update(evaluate_lists(model, *device, session->rank() == 0));
    if (session->rank() == 0) print(result);
    return 0;
  }

 private:
  Json evaluate_data(const Parsed& parsed, const train::LoadedModel& model, device::Device& device,
                     comm::Mesh& mesh) const {
    data::DataConfig config = parsed.config.data;
    config.train = config.valid;
    config.valid.clear();
    config.shuffle = false;
    const std::vector<data::CorpusSpec> corpora = data::parse_corpora(config.train, "data.valid");
    const bool has_text = std::any_of(corpora.begin(), corpora.end(), [](const data::CorpusSpec& corpus) {
      return data::is_text_source(corpus.prefix);
    });
    if (has_text && !parsed.sources.contains("data.tokenizer"))
      config.tokenizer = tokenizer_of(train::ModelSource(from_, mesh.world()));
    config = train::with_token_files(config, {}, narrow<int>(parsed.config.run.threads), mesh.world());
    const auto sampler = data::open_sources(config, model.config.vocab).train;
    const Index samples = samples_ > 0 ? std::min(samples_, sampler->samples()) : sampler->samples();
    Json json = to_json(train::evaluate_samples(model, *sampler, samples, device, mesh.world()));
    json["samples"] = samples;
    return json;
  }

  Json evaluate_lists(const train::LoadedModel& model, device::Device& device, bool writes) const {
    const IdLists lists = read_id_lists(ids_);
    if (lists.empty()) throw DataError("{}: no list of token ids", ids_);
    std::vector<train::SequenceResult> results;
    train::LossSum total;
    Json losses = Json::array();
    for (std::size_t i = 0; i < lists.size(); ++i) {
      try {
        results.push_back(train::evaluate_ids(model, lists[i], !logits_.empty(), device));
      } catch (const DataError& error) {
        throw DataError("{}: list {}: {}", ids_, i, error.what());
      }
      const train::LossSum& one = results.back().loss;
      total.loss += one.loss;
      total.targets += one.targets;
      losses.push_back(one.targets > 0 ? Json(one.mean()) : Json(nullptr));
    }
    if (total.targets == 0)
      throw DataError("{}: no list has two ids or more, so there is nothing to predict", ids_);
    if (!logits_.empty() && writes) write_logits(logits_, lists, results, model.config.vocab);
    Json json = to_json(total);
    json["losses"] = losses;
    return json;
  }

  void print(const Json& result) const {
    if (json_) {
      fmt::print("{}\n", result.dump());
      return;
    }
    fmt::print("{} (step {})\nloss {:.6f}  perplexity {:.4f}  {} targets\n",
               result["checkpoint"].get<std::string>(), result["step"].get<Index>(),
               result["loss"].get<double>(), result["perplexity"].get<double>(),
               result["targets"].get<Index>());
  }

  std::string from_, ids_, logits_;
  Index samples_ = 0;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_eval() { return std::make_unique<Eval>(); }

}  // namespace cartan::cli
