// What the user said: options of the command line and of INI files merged into a configuration, each value
// with its source. Defaults < model.preset or model.from < a configuration of another trainer < files in
// their order < command line.
//
// How a command uses it (command.hpp has the class around it):
//   CommandSpec spec{.name = "generate", .uses = {"model", "data.tokenizer", "run.dir"}, ...};
//   spec.options = {{.key = "prompt", .target = &prompt_, .help = "the beginning of the text"}};
//   Parsed parsed = parse(spec, words);   // fills prompt_ too
//   resolve(parsed, session.world_size());  // derives and checks; messages name the sources
//   to_ini(parsed.config, parsed.sources);  // what config.ini in a run directory holds
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cartan/core/error.hpp"
#include "cartan/train/config.hpp"
#include "cli/foreign/translation.hpp"
#include "cli/option.hpp"

namespace cartan::cli {

/// Where a value came from.
struct Source {
  enum class Kind { preset, model, file, command_line, derived };
  Kind kind = Kind::command_line;
  /// The preset, the path of the model, FILE:LINE, or "ds_config.json: zero_optimization.stage".
  std::string name = {};
  friend bool operator==(const Source&, const Source&) = default;
};
/// "preset llama3-8b", "run.ini:4", "command line", "derived".
std::string to_string(const Source& source);

/// By key; a key that is not in it has its default.
using Sources = std::map<std::string, Source, std::less<>>;

/// "default" for a key that is not in `sources`.
std::string source_text(const Sources& sources, std::string_view key);

/// What the command line of one command looks like.
struct CommandSpec {
  std::string name;                        ///< "train"
  std::string sentence = {};               ///< what it does, without a full stop
  std::string usage = {};                  ///< what follows "cartan train"
  std::vector<std::string> examples = {};  ///< two real commands
  std::vector<std::string> uses = {};  ///< sections ("model") and keys ("data.seq") that the command reads
  std::vector<Option> options = {};    ///< its own, bound to variables of the command
  std::map<std::string, std::string> short_names =
      {};  ///< further ones of keys: {"tokenizer", "data.tokenizer"}
  /// Takes --from FILE, a configuration of another trainer.
  bool translates = false;
  std::string words_name = {};  ///< "PATH...": words without a key are taken; empty: they are an error
  /// Own options that later versions bring, with what this one lacks: {"from", "import of models"}.
  std::map<std::string, std::string> later_options = {};
  std::vector<ExitCode> exit_codes = {ExitCode::done, ExitCode::usage, ExitCode::missing_input,
                                      ExitCode::configuration};
};

struct Parsed {
  train::Config config;
  Sources sources;
  std::vector<std::string> words;                   ///< those without a key
  std::vector<std::string> config_files;            ///< as given by --config
  std::optional<foreign::Translation> translation;  ///< of the file given by --from
};

/// Reads the words behind "cartan COMMAND" and the files that they name. Any command accepts a file with any
/// known key, so that one file serves all; on the command line only the keys that the command uses are known.
/// A list may be given in several words and several times; of other options the last one wins. Throws, with
/// all problems in one message,
///   UsageError   unknown, misspelt or incomplete options on the command line, wrong values of own options
///   ConfigError  unknown or doubled keys in a file, values that are not allowed, keys of later versions;
///   what
///                a configuration of another trainer asks for and cannot be done
///   DataError    such a configuration that cannot be read
///   MissingError, IoError   a file that cannot be read
Parsed parse(const CommandSpec& spec, std::span<const std::string> words);

/// train::resolve(); values that change become `derived`, and messages name the source behind each
/// "key = value". Before, a batch that another trainer's configuration describes by its parts is completed
/// for the replicas that `world_size` ranks have.
void resolve(Parsed& parsed, int world_size);

/// The same completion without knowing the ranks: for mesh.dp, or else for the replicas that the parts of the
/// batch mean themselves, which then become mesh.dp. Throws ConfigError where batch.global cannot be known.
void complete_batch_without_ranks(Parsed& parsed);

/// All keys as INI, section by section, the source of each value as a comment. Reading it back gives the same
/// configuration.
std::string to_ini(const train::Config& config, const Sources& sources);
/// The same with what became of another trainer's configuration as comments above it.
std::string to_ini(const Parsed& parsed);

/// `message` with the source behind every "key = value".
std::string with_sources(std::string_view message, const Sources& sources);

}  // namespace cartan::cli
