// `cartan eval`: what a model makes of texts, token files, token ids and questions.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <numbers>

#include "cartan/comm/mesh_groups.hpp"
#include "cartan/core/file.hpp"
#include "cartan/core/json.hpp"
#include "cartan/core/narrow.hpp"
#include "cartan/core/text.hpp"
#include "cartan/store/safetensors.hpp"
#include "cartan/train/choices.hpp"
#include "cartan/train/perplexity.hpp"
#include "cartan/train/run_device.hpp"
#include "cartan/train/text_sources.hpp"
#include "cli/command.hpp"
#include "cli/id_lists.hpp"
#include "cli/model_options.hpp"
#include "cli/model_tokenizer.hpp"

namespace cartan::cli {
namespace {

using IdLists = std::vector<std::vector<std::int32_t>>;

Json to_json(const train::LossSum& sum) {
  return Json{{"loss", sum.mean()}, {"perplexity", std::exp(sum.mean())}, {"targets", sum.targets}};
}

/// Lines of JSON, to a file or to stdout, each there as soon as it is known.
class LinesOut {
 public:
  /// An empty path: stdout.
  explicit LinesOut(std::string path) : path_(std::move(path)) {
    if (path_.empty()) return;
    file_.reset(std::fopen(path_.c_str(), "w"));
    if (file_ == nullptr) fail("create");
  }
  void write(const Json& line) {
    fmt::print(to(), "{}\n", line.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  void flush() {
    if (std::fflush(to()) != 0 || std::ferror(to()) != 0) fail("write");
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::FILE* to() const { return file_ ? file_.get() : stdout; }
  [[noreturn]] void fail(const char* what) const {
    throw IoError("cannot {} {}: {}", what, path_.empty() ? "stdout" : path_, errno_text(errno));
  }

  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
};

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
        .sentence = "loss, perplexity and choices of a model, on texts, token files, token ids or questions",
        .usage =
            "--from CHECKPOINT|RUN_DIR|FOLDER (--data.valid PREFIX... | --text FILE... | --choices FILE | "
            "--ids "
            "FILE) [--json]",
        .examples = {"cartan eval --from runs/quickstart --text README.md --stride 64",
                     "mpirun -n 2 cartan eval --from runs/quickstart --choices questions.jsonl --output "
                     "answers.jsonl --json"},
        .uses = {"data.valid", "data.seq", "data.tokenizer", "data.json-key", "data.template", "data.cache",
                 "data.raw-type", "data.raw-end", "mesh.pp", "mesh.dp", "mesh.cp", "mesh.tp", "pipeline.cut",
                 "run.device", "run.threads", "precision.compute"},
        .options = {from_option(from_),
                    base_option(base_),
                    {.key = "text",
                     .target = &texts_,
                     .help =
                         "text files: the perplexity of each token, by windows of data.seq (else the model's "
                         "length, at most 2048)",
                     .value_name = "FILE..."},
                    {.key = "stride",
                     .target = &stride_,
                     .help =
                         "with --text or --data.valid: windows over each document move on by so many, and "
                         "predict what the ones before did not hold; 0: a whole window (--text), packed "
                         "samples (--data.valid)",
                     .unit = "tokens",
                     .range = at_least(0)},
                    {.key = "choices",
                     .target = &choices_,
                     .help = "JSON lines with context, choices, label: the log-likelihood of each choice",
                     .value_name = "FILE",
                     .may_be_empty = true},
                    {.key = "output",
                     .target = &output_,
                     .help = "with --choices: a JSON line for each question goes to this file",
                     .value_name = "FILE",
                     .may_be_empty = true},
                    {.key = "ids",
                     .target = &ids_,
                     .help = "a JSON file: a list of lists of token ids",
                     .value_name = "FILE",
                     .may_be_empty = true},
                    {.key = "samples",
                     .target = &samples_,
                     .help = "samples of the data set, in stored order, or windows; 0: all",
                     .range = at_least(0)},
                    {.key = "logits",
                     .target = &logits_,
                     .help = "with --ids: write the logits to this safetensors file",
                     .value_name = "FILE",
                     .may_be_empty = true},
                    {.key = "json",
                     .target = &json_,
                     .help = "print one JSON object; with --choices, without --output, one for each question "
                             "before it",
                     .is_flag = true}},
        .exit_codes = {ExitCode::done, ExitCode::usage, ExitCode::bad_data, ExitCode::missing_input,
                       ExitCode::environment, ExitCode::io, ExitCode::configuration, ExitCode::diverged}};
  }
  bool needs_mpi() const override { return true; }

  int run(Parsed& parsed, comm::Session* session) override {
    const train::Config& config = parsed.config;
    check_options(config);
    const comm::MeshShape shape = comm::resolve_mesh(config.mesh, session->world_size());
    const auto device = train::make_run_device(config, *session);
    comm::Mesh mesh(*session, shape, device->kind());
    const train::ModelSource source(from_, mesh.world(), {.base = base_});
    const train::LoadedModel model = train::load_model(source, dtype_from_name(config.precision.compute),
                                                       *device, mesh, config.pipeline.cut);
    const train::EvaluationPlace place{*device, mesh, train::overlaps(*session, *device)};
    Json result{{"checkpoint", model.path.string()}, {"step", model.run.step}};
    if (!ids_.empty())
      result.update(evaluate_lists(model, place));
    else if (!choices_.empty())
      result.update(evaluate_choices(parsed, source, model, place));
    else if (!texts_.empty() || stride_ > 0)
      result.update(evaluate_windows(parsed, source, model, place));
    else
      result.update(evaluate_data(parsed, source, model, place));
    if (session->rank() == 0) print(result);
    return 0;
  }

 private:
  void check_options(const train::Config& config) const {
    const int inputs = (ids_.empty() ? 0 : 1) + (choices_.empty() ? 0 : 1) + (texts_.empty() ? 0 : 1) +
                       (config.data.valid.empty() ? 0 : 1);
    if (inputs != 1)
      throw UsageError(
          "cartan eval needs one of --data.valid PREFIX, --text FILE, --choices FILE and --ids FILE");
    if (!logits_.empty() && ids_.empty()) throw UsageError("--logits goes with --ids");
    if (!output_.empty() && choices_.empty()) throw UsageError("--output goes with --choices");
    const bool has_windows = !texts_.empty() || !config.data.valid.empty();
    if (stride_ > 0 && !has_windows) throw UsageError("--stride goes with --text or --data.valid");
    if (samples_ > 0 && !has_windows) throw UsageError("--samples goes with --text or --data.valid");
  }

  /// What data.seq says, where it was given.
  static std::optional<Index> given_length(const Parsed& parsed) {
    return parsed.sources.contains("data.seq") ? std::optional(parsed.config.data.seq) : std::nullopt;
  }

  static std::unique_ptr<data::Tokenizer> tokenizer_for(const Parsed& parsed,
                                                        const train::ModelSource& source) {
    const bool is_given = parsed.sources.contains("data.tokenizer");
    return data::make_tokenizer(is_given ? parsed.config.data.tokenizer : tokenizer_of(source));
  }

  Json evaluate_data(const Parsed& parsed, const train::ModelSource& source, const train::LoadedModel& model,
                     const train::EvaluationPlace& place) const {
    data::DataConfig data = parsed.config.data;
    data.train = data.valid;
    data.valid.clear();
    data.shuffle = false;
    if (!parsed.sources.contains("data.tokenizer")) data.tokenizer = tokenizer_of(source);
    data = train::with_token_files(data, {}, narrow<int>(parsed.config.run.threads), place.mesh.world());
    const auto sampler = data::open_sources(data, model.config.vocab).train;
    const Index samples = samples_ > 0 ? std::min(samples_, sampler->samples()) : sampler->samples();
    Json json = to_json(train::evaluate_samples(model, *sampler, samples, place));
    json["samples"] = samples;
    return json;
  }

  Json evaluate_windows(const Parsed& parsed, const train::ModelSource& source,
                        const train::LoadedModel& model, const train::EvaluationPlace& place) const {
    train::WindowOptions options;
    options.length = given_length(parsed).value_or(length_of(source));
    options.stride = stride_ > 0 ? stride_ : options.length;
    options.most = samples_;
    if (options.stride > options.length)
      throw UsageError("--stride {} is more than the {} tokens of a window: tokens would be left out (--seq)",
                       options.stride, options.length);
    Index bytes = 0, words = 0;
    const train::WindowedLoss found =
        texts_.empty() ? evaluate_documents(parsed.config, model, options, place)
                       : evaluate_files(*tokenizer_for(parsed, source), model, options, place, bytes, words);
    if (found.loss.targets == 0)
      throw DataError("{}: no text has two tokens or more, so there is nothing to predict",
                      texts_.empty() ? parsed.config.data.valid.front() : texts_.front());
    Json json = to_json(found.loss);
    json.update({{"texts", found.texts},
                 {"tokens", found.tokens},
                 {"windows", found.windows},
                 {"window", options.length},
                 {"stride", options.stride}});
    if (bytes == 0 || options.most > 0) return json;
    const auto per = [&](Index count) { return found.loss.loss / static_cast<double>(count); };
    json.update({{"bytes", bytes}, {"words", words}, {"bits_per_byte", per(bytes) / std::numbers::ln2}});
    if (words > 0) json["word_perplexity"] = std::exp(per(words));
    return json;
  }

  /// Each file is a text.
  train::WindowedLoss evaluate_files(const data::Tokenizer& tokenizer, const train::LoadedModel& model,
                                     const train::WindowOptions& options, const train::EvaluationPlace& place,
                                     Index& bytes, Index& words) const {
    auto file = texts_.begin();
    const auto next = [&](std::vector<std::int32_t>& ids) {
      if (file == texts_.end()) return false;
      const std::string text = read_file(*file);
      bytes += std::ssize(text);
      words += train::count_words(text);
      ids = tokenizer.encode_with_special(text);
      with_name(*file, [&] { train::check_ids(ids, model.config.vocab); });
      ++file;
      return true;
    };
    return train::evaluate_texts(model, next, options, place);
  }

  /// Each document of the token files is a text.
  static train::WindowedLoss evaluate_documents(const train::Config& config, const train::LoadedModel& model,
                                                const train::WindowOptions& options,
                                                const train::EvaluationPlace& place) {
    std::vector<data::IndexedDataset> sets;
    for (const data::CorpusSpec& spec : data::parse_corpora(config.data.valid, "data.valid"))
      sets.emplace_back(spec.prefix);
    auto set = sets.begin();
    Index document = 0;
    const auto next = [&](std::vector<std::int32_t>& ids) {
      while (set != sets.end() && document == set->documents()) {
        ++set;
        document = 0;
      }
      if (set == sets.end()) return false;
      const data::IndexRange tokens = set->document_tokens(document++);
      ids.resize(static_cast<std::size_t>(tokens.size()));
      set->read_tokens(tokens.begin, ids, model.config.vocab);
      return true;
    };
    return train::evaluate_texts(model, next, options, place);
  }

  Json evaluate_choices(const Parsed& parsed, const train::ModelSource& source,
                        const train::LoadedModel& model, const train::EvaluationPlace& place) const {
    const auto tokenizer = tokenizer_for(parsed, source);
    const Index longest = given_length(parsed).value_or(model.config.max_length);
    std::optional<LinesOut> out;
    const bool speaks = place.mesh.world().rank() == 0;
    if (speaks && (json_ || !output_.empty())) out.emplace(output_);
    train::Accuracy accuracy;
    std::vector<train::Question> waiting;
    const auto flush = [&] {
      with_name(choices_, [&] {
        const std::vector<train::Answer> answers = train::answer(model, waiting, longest, place);
        for (std::size_t i = 0; i < answers.size(); ++i) {
          accuracy.add(waiting[i], answers[i]);
          if (out) out->write(train::to_json(waiting[i], answers[i]));
        }
      });
      if (out) out->flush();
      waiting.clear();
    };
    const MappedFile file(choices_);
    std::string_view rest(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
    for (Index number = 1; !rest.empty(); ++number) {
      const std::string_view line = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(rest.size(), line.size() + 1));
      if (trim(line).empty()) continue;
      waiting.push_back(train::parse_question(line, fmt::format("{}:{}", choices_, number), *tokenizer,
                                              model.config.vocab));
      waiting.back().line = number;
      if (std::ssize(waiting) == kQuestionsAtOnce) flush();
    }
    flush();
    Json summary = accuracy.summary();
    if (summary["questions"] == 0) throw DataError("{}: no question", choices_);
    return summary;
  }

  Json evaluate_lists(const train::LoadedModel& model, const train::EvaluationPlace& place) const {
    const IdLists lists = parse_id_lists(read_file(ids_), ids_);
    if (lists.empty()) throw DataError("{}: no list of token ids", ids_);
    std::vector<train::SequenceResult> results;
    train::LossSum total;
    Json losses = Json::array();
    for (std::size_t i = 0; i < lists.size(); ++i) {
      with_name(fmt::format("{}: list {}", ids_, i),
                [&] { results.push_back(train::evaluate_ids(model, lists[i], !logits_.empty(), place)); });
      const train::LossSum& one = results.back().loss;
      total.loss += one.loss;
      total.targets += one.targets;
      losses.push_back(one.targets > 0 ? Json(one.mean()) : Json(nullptr));
    }
    if (total.targets == 0)
      throw DataError("{}: no list has two ids or more, so there is nothing to predict", ids_);
    if (!logits_.empty() && place.mesh.world().rank() == 0)
      write_logits(logits_, lists, results, model.config.vocab);
    Json json = to_json(total);
    json["losses"] = losses;
    return json;
  }

  /// Errors of `work` begin with `name`.
  template <class Work>
  static void with_name(const std::string& name, const Work& work) {
    try {
      work();
    } catch (const DataError& error) {
      throw DataError("{}: {}", name, error.what());
    } catch (const NumericError& error) {
      throw NumericError("{}: {}", name, error.what());
    }
  }

  void print(const Json& result) const {
    if (json_) {
      fmt::print("{}\n", result.dump());
      return;
    }
    fmt::print("{} (step {})\n", result["checkpoint"].get<std::string>(), result["step"].get<Index>());
    if (result.contains("questions")) {
      fmt::print("{} questions, {} with a label\n", result["questions"].get<Index>(),
                 result["labels"].get<Index>());
      for (const char* const key : {"acc", "acc_norm", "acc_bytes", "acc_tokens"})
        if (result.contains(key)) fmt::print("{} {:.4f}\n", key, result[key].get<double>());
      return;
    }
    fmt::print("loss {:.6f}  perplexity {:.4f}  {} targets\n", result["loss"].get<double>(),
               result["perplexity"].get<double>(), result["targets"].get<Index>());
    if (result.contains("windows"))
      fmt::print("{} tokens in {} texts, {} windows of {} with stride {}\n", result["tokens"].get<Index>(),
                 result["texts"].get<Index>(), result["windows"].get<Index>(), result["window"].get<Index>(),
                 result["stride"].get<Index>());
    if (result.contains("bits_per_byte"))
      fmt::print("bits per byte {:.6f} over {} bytes\n", result["bits_per_byte"].get<double>(),
                 result["bytes"].get<Index>());
    if (result.contains("word_perplexity"))
      fmt::print("perplexity of a word {:.4f} over {} words\n", result["word_perplexity"].get<double>(),
                 result["words"].get<Index>());
  }

  static constexpr Index kQuestionsAtOnce = 256;

  std::string from_, base_, ids_, logits_, choices_, output_;
  std::vector<std::string> texts_;
  Index samples_ = 0, stride_ = 0;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_eval() { return std::make_unique<Eval>(); }

}  // namespace cartan::cli
