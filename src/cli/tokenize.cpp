// `cartan tokenize`: text to token files.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "cartan/core/text.hpp"
#include "cartan/data/tokenize.hpp"
#include "cli/command.hpp"

namespace cartan::cli {
namespace {

/// One line on a terminal that is written over, ten times a second at most; nothing in a log.
class ProgressLine {
 public:
  void show(const data::TokenizeCounts& counts) {
    using namespace std::chrono_literals;
    const auto now = std::chrono::steady_clock::now();
    if (!is_terminal_ || now - last_ < 100ms) return;
    last_ = now;
    const double percent = 100.0 * static_cast<double>(counts.bytes) /
                           static_cast<double>(std::max<Index>(1, counts.total_bytes));
    fmt::print(stderr, "\r{:5.1f} %  {} documents, {} tokens\x1b[K", percent, counts.documents,
               format_count(static_cast<std::uint64_t>(counts.tokens)));
    is_shown_ = true;
  }
  ~ProgressLine() {
    if (is_shown_) std::fputs("\r\x1b[K", stderr);
  }

 private:
  const bool is_terminal_ = isatty(STDERR_FILENO) == 1;
  bool is_shown_ = false;
  std::chrono::steady_clock::time_point last_{};
};

class Tokenize : public Command {
 public:
  CommandSpec spec() override {
    return {
        .name = "tokenize",
        .sentence =
            "turn text files, folders, JSON lines, chats and Parquet files into token files for data.train",
        .usage =
            "--input PATH... --output PREFIX [--tokenizer byte|PATH] [--json-key NAME] [--template NAME] "
            "[--threads N]",
        .examples =
            {"cartan tokenize --input docs src --output corpus",
             "cartan tokenize --input chats.jsonl --tokenizer Llama-3.2-1B --template llama3 --output "
             "data/chats"},
        .uses = {"data.tokenizer", "data.json-key", "data.template"},
        .options =
            {{.key = "input",
              .target = &inputs_,
              .help = "text files, folders (all text files in them), .jsonl files with one document or one "
                      "sample of instruction data a line, .parquet files",
              .value_name = "PATH...",
              .is_required = true},
             {.key = "output",
              .target = &output_,
              .help = "PREFIX.bin and PREFIX.idx are written, and PREFIX.mask for instruction data",
              .value_name = "PREFIX",
              .is_required = true},
             {.key = "threads",
              .target = &threads_,
              .help = "threads that encode; 0: as many as there are CPUs",
              .range = between(0, 4096)}},
        .short_names = {{"tokenizer", "data.tokenizer"},
                        {"json-key", "data.json-key"},
                        {"template", "data.template"}},
        .exit_codes = {ExitCode::done, ExitCode::usage, ExitCode::bad_data, ExitCode::missing_input,
                       ExitCode::io, ExitCode::configuration}};
  }

  int run(Parsed& parsed, comm::Session*) override {
    if (inputs_.empty())
      throw UsageError("cartan tokenize needs --input PATH... (see cartan tokenize --help)");
    const auto tokenizer = data::make_tokenizer(parsed.config.data.tokenizer);
    data::TokenizeCounts counts;
    {
      ProgressLine line;
      data::TokenizeOptions options;
      options.json_key = parsed.config.data.json_key;
      options.chat_template = parsed.config.data.chat_template;
      options.tokenizer_spec = parsed.config.data.tokenizer;
      options.threads = threads_ > 0 ? static_cast<int>(threads_)
                                     : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
      options.progress = [&](const data::TokenizeCounts& now) { line.show(now); };
      counts = data::tokenize_files(inputs_, output_, *tokenizer, options);
    }
    const std::string size = format_bytes(static_cast<std::uint64_t>(counts.total_bytes));
    if (counts.has_mask)
      fmt::print(
          "{0}.bin, {0}.idx, {0}.mask: {1} samples, {2} tokens, of which {3} count, from {4} files ({5})\n",
          output_, counts.documents, counts.tokens, counts.counted, counts.files, size);
    else
      fmt::print("{0}.bin, {0}.idx: {1} documents, {2} tokens from {3} files ({4})\n", output_,
                 counts.documents, counts.tokens, counts.files, size);
    if (counts.binary_files > 0) fmt::print("skipped {} binary files\n", counts.binary_files);
    if (counts.empty_texts > 0) fmt::print("skipped {} empty texts\n", counts.empty_texts);
    return 0;
  }

 private:
  std::vector<std::string> inputs_;
  std::string output_;
  Index threads_ = 0;
};

}  // namespace

std::unique_ptr<Command> make_tokenize() { return std::make_unique<Tokenize>(); }

}  // namespace cartan::cli
