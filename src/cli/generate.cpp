// `cartan generate`: text from a checkpoint.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "cartan/core/file.hpp"
#include "cartan/core/json.hpp"
#include "cartan/core/text.hpp"
#include "cartan/data/tokenizer.hpp"
#include "cartan/infer/generator.hpp"
#include "cartan/train/loaded_model.hpp"
#include "cli/command.hpp"
#include "cli/model_tokenizer.hpp"

namespace cartan::cli {
namespace {

struct Prompt {
  std::string text;  ///< empty where ids were given
  std::vector<std::int32_t> ids;
};

class Generate : public Command {
 public:
  CommandSpec spec() override {
    return {
        .name = "generate",
        .sentence = "write text with a model",
        .usage =
            "--from CHECKPOINT|RUN_DIR|FOLDER (--prompt TEXT | --prompts FILE | --ids FILE) "
            "[--max-new-tokens N]",
        .examples = {"cartan generate --from runs/quickstart --prompt \"#include \" --max-new-tokens 200",
                     "cartan generate --from runs/quickstart --prompts lines.txt --temperature 0.8 --json"},
        .uses = {"data.tokenizer", "run.device", "run.threads", "precision.compute"},
        .options = {{.key = "from",
                     .target = &from_,
                     .help = "a checkpoint, a run directory (its newest good one), or a Hugging Face folder",
                     .value_name = "PATH",
                     .is_required = true},
                    {.key = "prompt",
                     .target = &prompt_,
                     .help = "the beginning of the text",
                     .value_name = "TEXT",
                     .may_be_empty = true},
                    {.key = "prompts",
                     .target = &prompts_,
                     .help = "a text file with one prompt a line",
                     .value_name = "FILE",
                     .may_be_empty = true},
                    {.key = "ids",
                     .target = &ids_,
                     .help = "a JSON file: a list of lists of token ids",
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
                    {.key = "seed", .target = &seed_, .help = "of the random choices"},
                    {.key = "ignore-end",
                     .target = &ignore_end_,
                     .help = "go on after the token that ends a text",
                     .is_flag = true},
                    {.key = "json",
                     .target = &json_,
                     .help = "print one JSON object a prompt, with text and ids",
                     .is_flag = true}},
        .exit_codes = {ExitCode::done, ExitCode::usage, ExitCode::bad_data, ExitCode::missing_input,
                       ExitCode::environment, ExitCode::io, ExitCode::configuration, ExitCode::diverged}};
  }

  int run(Parsed& parsed, comm::Session*) override {
    if ((prompt_.empty() ? 0 : 1) + (prompts_.empty() ? 0 : 1) + (ids_.empty() ? 0 : 1) != 1)
      throw UsageError("cartan generate needs one of --prompt TEXT, --prompts FILE and --ids FILE");
    const train::Config& config = parsed.config;
    comm::Mesh alone = comm::Mesh::alone();
    const train::ModelSource source(from_, alone.world());
    const bool is_given = parsed.sources.contains("data.tokenizer");
    const std::string name = is_given ? config.data.tokenizer : tokenizer_of(source);
    const auto tokenizer = data::make_tokenizer(name);
    // Bytes are what a folder without a tokenizer is least likely to have been trained on.
    const bool has_end = is_given || name != "byte" || !store::is_model_folder(source.path());
    const std::vector<Prompt> prompts = read_prompts(*tokenizer);
    device::DeviceOptions on_device;
    on_device.threads = config.run.threads;
    on_device.graphs = false;  // no token attends to as many keys as the one before: nothing repeats
    const auto device = device::make_device(device::device_kind_from_name(config.run.device), on_device);
    const train::LoadedModel model =
        train::load_model(source, dtype_from_name(config.precision.compute), *device, alone);
    Index longest = 1;
    for (const Prompt& prompt : prompts) longest = std::max(longest, static_cast<Index>(prompt.ids.size()));
    infer::Generator generator(model.config, *model.state, longest + max_new_tokens_, *device);
    infer::GenerateOptions options;
    options.max_new_tokens = max_new_tokens_;
    options.sampling = {temperature_, top_k_, top_p_};
    options.seed = seed_;
    if (!ignore_end_ && has_end && tokenizer->vocab_size() <= model.config.vocab)
      options.end_token = tokenizer->end_of_text();
    for (const Prompt& prompt : prompts)
      write(prompt, generator.generate(prompt.ids, options), *tokenizer, options.end_token);
    return 0;
  }

 private:
  std::vector<Prompt> read_prompts(const data::Tokenizer& tokenizer) const {
    std::vector<Prompt> prompts;
    if (!ids_.empty()) {
      const Json json = read_json(ids_);
      try {
        for (auto& ids : json.get<std::vector<std::vector<std::int32_t>>>())
          prompts.push_back({"", std::move(ids)});
      } catch (const nlohmann::json::exception& error) {
        throw DataError("{}: expected a JSON list of lists of token ids: {}", ids_, error.what());
      }
    } else {
      std::vector<std::string> texts{prompt_};
      if (!prompts_.empty()) {
        texts = split(read_file(prompts_), '\n');
        if (!texts.empty() && texts.back().empty()) texts.pop_back();
      }
      for (std::string& text : texts) {
        // What the tokenizer puts before a text; what it puts after one would end the prompt.
        std::vector<std::int32_t> ids(tokenizer.ids_before().begin(), tokenizer.ids_before().end());
        tokenizer.append_ids(text, true, ids);
        prompts.push_back({std::move(text), std::move(ids)});
      }
    }
    if (prompts.empty()) throw DataError("{}: no prompt", ids_.empty() ? prompts_ : ids_);
    return prompts;
  }

  void write(const Prompt& prompt, const std::vector<std::int32_t>& ids, const data::Tokenizer& tokenizer,
             std::int32_t end_token) const {
    std::vector<std::int32_t> readable = ids;
    if (!readable.empty() && readable.back() == end_token) readable.pop_back();
    std::string text;
    try {
      text = tokenizer.decode(readable, {.at_start = false});
    } catch (const DataError&) {
      text.clear();  // a model with another vocabulary than the tokenizer: the ids say it all
    }
    if (json_) {
      // Bytes that are no UTF-8 (a character that was cut) are replaced in the text; ids are exact.
      fmt::print("{}\n",
                 Json{{"text", text}, {"ids", ids}}.dump(-1, ' ', false, Json::error_handler_t::replace));
    } else {
      fmt::print("{}{}\n", prompt.text, text);
    }
    std::fflush(stdout);
  }

  std::string from_, prompt_, prompts_, ids_;
  Index max_new_tokens_ = 64, top_k_ = 0;
  double temperature_ = 0, top_p_ = 1;
  std::uint64_t seed_ = 1234;
  bool ignore_end_ = false, json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_generate() { return std::make_unique<Generate>(); }

}  // namespace cartan::cli
