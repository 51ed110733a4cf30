// `cartan generate`: texts from a checkpoint or a model folder, on one process or the ranks of a job.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <iterator>

#include "cartan/core/file.hpp"
#include "cartan/core/log.hpp"
#include "cartan/core/narrow.hpp"
#include "cartan/data/utf8.hpp"
#include "cartan/infer/text_stream.hpp"
#include "cartan/store/model_config_file.hpp"
#include "cartan/train/loaded_model.hpp"
#include "cartan/train/run_device.hpp"
#include "cli/command.hpp"
#include "cli/model_options.hpp"
#include "cli/model_tokenizer.hpp"
#include "cli/text_writer.hpp"

namespace cartan::cli {
namespace {

std::string read_standard_input() {
  std::string text(std::istreambuf_iterator<char>(std::cin), {});
  if (std::cin.bad()) throw IoError("cannot read standard input");
  return text;
}

/// A text that the first rank has, on all of them.
std::string share(std::string text, comm::Communicator& comm, int root) {
  if (comm.size() == 1) return text;
  std::uint64_t size = text.size();
  comm.broadcast_host(std::as_writable_bytes(std::span(&size, 1)), root);
  text.resize(size);
  if (size > 0) comm.broadcast_host(std::as_writable_bytes(std::span(text)), root);
  return text;
}

class Generate : public Command {
 public:
  CommandSpec spec() override {
    return {
        .name = "generate",
        .sentence = "write text with a model",
        .usage =
            "--from CHECKPOINT|RUN_DIR|FOLDER (--prompt TEXT | --prompts FILE | --ids FILE | --jsonl FILE) "
            "[--max-new-tokens N]",
        .examples = {"cartan generate --from runs/quickstart --prompt \"#include \" --max-new-tokens 200",
                     "mpirun -n 2 cartan generate --from runs/quickstart --tp 2 --jsonl questions.jsonl "
                     "--temperature 0.8"},
        .uses = {"data.tokenizer", "mesh.pp", "mesh.dp", "mesh.cp", "mesh.tp", "pipeline.cut", "run.device",
                 "run.threads", "precision.compute"},
        .options =
            {from_option(from_),
             base_option(base_),
             {.key = "prompt",
              .target = &prompt_,
              .help = "the beginning of the text",
              .value_name = "TEXT",
              .may_be_empty = true},
             {.key = "prompts",
              .target = &prompts_,
              .help = "a text file with one prompt a line; - is standard input",
              .value_name = "FILE",
              .may_be_empty = true},
             {.key = "ids",
              .target = &ids_,
              .help = "a JSON file: a list of lists of token ids",
              .value_name = "FILE",
              .may_be_empty = true},
             {.key = "jsonl",
              .target = &jsonl_,
              .help = "a file with a JSON object a line, - is standard input: \"prompt\" (text) or "
                      "\"ids\", and if wanted \"id\", \"max_new_tokens\", \"temperature\", \"top_k\", "
                      "\"top_p\", \"repetition_penalty\", \"seed\" and \"stop\", which win over the "
                      "options; results as with --json, with the same \"id\"",
              .value_name = "FILE",
              .may_be_empty = true},
             {.key = "max-new-tokens",
              .target = &max_new_tokens_,
              .help = "tokens to write at most",
              .range = at_least(1)},
             {.key = "temperature",
              .target = &temperature_,
              .help = "0: always the likeliest token; higher: more varied",
              .range = at_least(0)},
             {.key = "top-k",
              .target = &top_k_,
              .help = "choose among the k likeliest tokens; 0: all",
              .range = at_least(0)},
             {.key = "top-p",
              .target = &top_p_,
              .help = "choose among the likeliest tokens with this probability together",
              .range = {.low = 0, .high = 1, .open_low = true}},
             {.key = "repetition-penalty",
              .target = &repetition_penalty_,
              .help = "logits of tokens that prompt or text have already are divided by it, negative "
                      "ones multiplied; 1: as they are",
              .range = above(0)},
             {.key = "seed", .target = &seed_, .help = "of the random choices"},
             {.key = "stop",
              .target = &stops_,
              .help = "end when the text contains this, and leave it out; may be given several times",
              .value_name = "STRING",
              .is_repeated = true},
             {.key = "ignore-end",
              .target = &ignore_end_,
              .help = "go on after a token that ends a text",
              .is_flag = true},
             {.key = "batch",
              .target = &batch_,
              .help = "prompts that a replica of the model continues together, each with its own memory "
                      "of keys and values",
              .range = between(1, 1 << 16)},
             {.key = "stream",
              .target = &stream_,
              .help = "print text as it comes, as on a terminal; not with --json, and with mesh.dp > 1 "
                      "whole texts only",
              .is_flag = true},
             {.key = "json",
              .target = &json_,
              .help = "print one JSON object a prompt, with text, ids, and finish: end (an end token), "
                      "stop (--stop) or length",
              .is_flag = true}},
        .exit_codes = {ExitCode::done, ExitCode::usage, ExitCode::bad_data, ExitCode::missing_input,
                       ExitCode::environment, ExitCode::io, ExitCode::configuration, ExitCode::diverged,
                       ExitCode::peer}};
  }
  bool shares_a_job() const override { return true; }

  int run(Parsed& parsed, comm::Session* session) override {
    check_options();
    train::Config config = parsed.config;
    config.run.graphs = false;  // no token attends to as many keys as the one before: nothing repeats
    const comm::MeshShape shape = comm::resolve_mesh(config.mesh, session ? session->world_size() : 1);
    const auto device = make_device(config, session);
    comm::Mesh mesh = session
                          ? comm::Mesh(*session, shape, device->kind(), {config.watch.of_mesh(), config.nccl})
                          : comm::Mesh::alone();
    const train::ModelSource source(from_, mesh.world(), {.base = base_});
    const bool is_given = parsed.sources.contains("data.tokenizer");
    const std::string name = is_given ? config.data.tokenizer : tokenizer_of(source);
    const auto tokenizer = data::make_tokenizer(name);
    PromptDefaults defaults;
    defaults.options = {max_new_tokens_, {temperature_, top_k_, top_p_}, repetition_penalty_, seed_, {}};
    if (!ignore_end_) defaults.options.end_tokens = end_tokens(source, *tokenizer, name, is_given);
    defaults.stops = stops_;
    const std::vector<Prompt> prompts = read_prompts(*tokenizer, defaults, mesh.world());
    Index longest = 1;
    for (const Prompt& prompt : prompts) {
      infer::check_prompt(prompt.request, source.config().vocab);
      longest = std::max(longest, std::ssize(prompt.request.prompt) + prompt.request.options.max_new_tokens);
    }
    if (const Index most = source.config().max_length; most > 0 && longest > most && mesh.world().rank() == 0)
      log::warning("infer", "texts may come to {} tokens, the model is made for {}", longest, most);
    const train::LoadedModel model = train::load_model(source, dtype_from_name(config.precision.compute),
                                                       *device, mesh, config.pipeline.cut);
    const Index share_of_replica = ceil_div(std::ssize(prompts), mesh.shape().dp);
    infer::Generator generator(model.config, *model.state, {longest, std::min(batch_, share_of_replica)},
                               *device, mesh);
    write(prompts, *tokenizer, generator, mesh);
    return 0;
  }

 private:
  void check_options() const {
    const auto given = [](const std::string& text) { return text.empty() ? 0 : 1; };
    if (given(prompt_) + given(prompts_) + given(ids_) + given(jsonl_) != 1)
      throw UsageError(
          "cartan generate needs one of --prompt TEXT, --prompts FILE, --ids FILE and --jsonl FILE");
    if (stream_ && (json_ || !jsonl_.empty()))
      throw UsageError("--stream prints text for people: leave it away with --json and --jsonl");
    for (const std::string& stop : stops_) {
      if (stop.empty()) throw UsageError("--stop: the string is empty, so no text could begin");
      if (!data::is_valid_utf8(stop)) throw UsageError("--stop {}: not UTF-8", printable(stop));
    }
  }

  static std::unique_ptr<device::Device> make_device(const train::Config& config, comm::Session* session) {
    if (session != nullptr) return train::make_run_device(config, *session);
    device::DeviceOptions options;
    options.threads = config.run.threads;
    options.graphs = config.run.graphs;
    return device::make_device(device::device_kind_from_name(config.run.device), options);
  }

  /// Those that the folder of the tokenizer or the model names, and the tokenizer's own.
  static std::vector<std::int32_t> end_tokens(const train::ModelSource& source,
                                              const data::Tokenizer& tokenizer, const std::string& name,
                                              bool is_given) {
    const std::filesystem::path folder =
        is_given ? train::tokenizer_folder(name, "") : tokenizer_folder_of(source);
    std::vector<std::int32_t> ids;
    if (!folder.empty()) ids = store::read_end_tokens(folder);
    // Bytes are what a folder without a tokenizer is least likely to have been trained on.
    const bool is_known = is_given || name != "byte" || !source.configuration().empty();
    if (!is_known || tokenizer.vocab_size() > source.config().vocab) return ids;
    try {
      ids.push_back(tokenizer.end_of_text());
    } catch (const ConfigError&) {
      if (ids.empty()) throw;  // neither knows one
    }
    return ids;
  }

  std::vector<Prompt> read_prompts(const data::Tokenizer& tokenizer, const PromptDefaults& defaults,
                                   comm::Communicator& world) const {
    if (!prompt_.empty()) return {prompt_of_text(prompt_, "--prompt", tokenizer, defaults)};
    const std::string& path = !prompts_.empty() ? prompts_ : !ids_.empty() ? ids_ : jsonl_;
    std::string content;
    if (world.rank() == 0) content = path == "-" ? read_standard_input() : read_file(path);
    content = share(std::move(content), world, 0);
    const std::string name = path == "-" ? "standard input" : path;
    if (!prompts_.empty()) return prompts_of_lines(content, name, tokenizer, defaults);
    if (!ids_.empty()) return prompts_of_id_lists(content, name, defaults);
    return prompts_of_json_lines(content, name, tokenizer, defaults);
  }

  OutputForm form(const comm::Mesh& mesh) const {
    if (json_ || !jsonl_.empty()) return OutputForm::json;
    const bool is_live = (stream_ || isatty(STDOUT_FILENO) != 0) && mesh.shape().dp == 1;
    return is_live ? OutputForm::stream : OutputForm::text;
  }

  /// Replicas take turns; each prompt is printed by rank 0 as soon as it and those before are over: with
  /// several replicas after a round, in which each continues a batch.
  void write(const std::vector<Prompt>& prompts, const data::Tokenizer& tokenizer,
             infer::Generator& generator, comm::Mesh& mesh) const {
    comm::Communicator& replicas = mesh.axis(comm::Axis::dp);
    const auto count = narrow<std::size_t>(replicas.size()), own = narrow<std::size_t>(replicas.rank());
    const std::size_t round = count == 1 ? prompts.size() : count * narrow<std::size_t>(batch_);
    const bool prints = mesh.world().rank() == 0;
    TextWriter writer(prompts, form(mesh));
    for (std::size_t first = 0; first < prompts.size(); first += round) {
      const std::size_t end = std::min(first + round, prompts.size());
      std::vector<std::size_t> numbers;
      for (std::size_t number = first + own; number < end; number += count) numbers.push_back(number);
      Json results = Json::array();  // of other replicas than the first, with the prompts' numbers
      continue_prompts(
          prompts, numbers, tokenizer, generator,
          [&](std::size_t number, const std::string& text) {
            if (prints) writer.update(number, text);
          },
          [&](std::size_t number, Written written) {
            if (own != 0) results.push_back({number, to_json(written)});
            if (prints) writer.finish(number, std::move(written));
          });
      for (int replica = 1; replica < replicas.size(); ++replica) {
        const std::string text = share(replicas.rank() == replica ? results.dump() : "", replicas, replica);
        if (!prints) continue;
        for (const Json& one : Json::parse(text))
          writer.finish(one[0].get<std::size_t>(), written_from_json(one[1]));
      }
    }
  }

  template <class OnText, class OnEnd>
  static void continue_prompts(const std::vector<Prompt>& prompts, const std::vector<std::size_t>& numbers,
                               const data::Tokenizer& tokenizer, infer::Generator& generator,
                               const OnText& on_text, const OnEnd& on_end) {
    std::vector<infer::Request> requests;
    std::vector<infer::TextStream> texts;
    for (const std::size_t number : numbers) {
      requests.push_back(prompts[number].request);
      texts.emplace_back(tokenizer, requests.back().options.end_tokens, prompts[number].stops);
    }
    generator.generate(
        requests,
        [&](std::size_t i, std::int32_t token) {
          const bool goes_on = texts[i].push(token);
          on_text(numbers[i], texts[i].text());
          return goes_on;
        },
        [&](std::size_t i, const infer::Continuation& continuation) {
          texts[i].finish();
          on_end(numbers[i], Written{texts[i].text(), continuation});
        });
  }

  std::string from_, base_, prompt_, prompts_, ids_, jsonl_;
  Index max_new_tokens_ = 64, top_k_ = 0, batch_ = 8;
  double temperature_ = 0, top_p_ = 1, repetition_penalty_ = 1;
  std::uint64_t seed_ = 1234;
  std::vector<std::string> stops_;
  bool ignore_end_ = false, json_ = false, stream_ = false;
};

}  // namespace

std::unique_ptr<Command> make_generate() { return std::make_unique<Generate>(); }

}  // namespace cartan::cli
