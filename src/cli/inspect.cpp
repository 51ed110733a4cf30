// `cartan inspect`: what is in a checkpoint, a run directory's newest checkpoint, a token file or a
// safetensors file.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>

#include "cartan/core/json.hpp"
#include "cartan/core/text.hpp"
#include "cartan/data/config.hpp"
#include "cartan/data/inspect.hpp"
#include "cartan/store/checkpoint.hpp"
#include "cartan/store/model_folder.hpp"
#include "cartan/store/safetensors.hpp"
#include "cli/command.hpp"

namespace cartan::cli {
namespace {

namespace fs = std::filesystem;

Json inspect_checkpoint(const fs::path& path, bool verify) {
  const store::CheckpointReader reader(path);
  if (verify) reader.verify();
  Json result{{"kind", "checkpoint"}};
  result.update(store::describe(reader));
  if (verify) result["verified"] = true;
  return result;
}

/// The format has no checksums: there is nothing to verify beyond what opening checks.
Json inspect_safetensors(const std::string& path) {
  const store::SafetensorsFile file(path);
  Json tensors = Json::array();
  Index parameters = 0;
  for (const store::NamedTensor& tensor : file.tensors()) {
    parameters += static_cast<Index>(tensor.bytes.size() / size_of(tensor.dtype));
    tensors.push_back({{"name", tensor.name},
                       {"dtype", name_of(tensor.dtype)},
                       {"shape", tensor.shape},
                       {"bytes", tensor.bytes.size()}});
  }
  return {{"kind", "safetensors"},
          {"path", path},
          {"bytes", fs::file_size(path)},
          {"parameters", parameters},
          {"tensors", std::move(tensors)}};
}

Json inspect_dataset(const std::string& prefix, const data::RawFormat& raw, bool verify) {
  const data::IndexedDataset dataset(prefix, raw);
  std::optional<data::DatasetScan> scan;
  if (verify) scan = data::verify(dataset);
  Json result{{"kind", "dataset"}, {"path", dataset.prefix()}};
  result.update(data::describe(dataset, scan));
  if (verify) result["verified"] = true;
  return result;
}

/// A Hugging Face folder, whose tensors must be those of its config.json.
Json inspect_model_folder(const fs::path& path) {
  const store::ModelFolder folder(path);
  Json tensors = Json::array();
  for (const store::FileTensor& tensor : store::file_tensors(folder.config()))
    tensors.push_back({{"name", tensor.name},
                       {"dtype", name_of(folder.dtype_of(tensor.parts.front().parameter))},
                       {"shape", tensor.shape}});
  return {{"kind", "model"},
          {"path", path.string()},
          {"parameters", model::parameter_count(folder.config())},
          {"model", model::to_json(folder.config())},
          {"tensors", std::move(tensors)}};
}

Json inspect_directory(const fs::path& path, bool verify) {
  const std::vector<Index> steps = store::checkpoint_steps(path);
  if (!steps.empty()) return inspect_checkpoint(store::checkpoint_path(path, steps.back()), verify);
  if (store::is_model_folder(path)) return inspect_model_folder(path);
  throw MissingError(
      "{}: a directory with neither checkpoints (checkpoints/step-N.h5) nor a model (config.json)",
      path.string());
}

Json inspect(const std::string& path, const data::RawFormat& raw, bool verify) {
  if (path.ends_with(".safetensors")) return inspect_safetensors(path);
  if (path.ends_with(".bin") || path.ends_with(".idx")) return inspect_dataset(path, raw, verify);
  if (fs::is_directory(path)) return inspect_directory(path, verify);
  if (fs::exists(path)) return inspect_checkpoint(path, verify);
  if (fs::exists(path + ".idx") || fs::exists(path + ".bin")) return inspect_dataset(path, raw, verify);
  throw MissingError("{0}: there is no such file or directory, and no token file {0}.idx", path);
}

std::string text_of(const Json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

/// "name  value" lines; objects indented below their name, texts of several lines too.
void print_fields(const Json& fields, const std::string& indent) {
  for (const auto& [name, value] : fields.items()) {
    if (value.is_object()) {
      fmt::print("{}{}\n", indent, name);
      print_fields(value, indent + "  ");
      continue;
    }
    const std::vector<std::string> lines = split(trim(text_of(value)), '\n');
    if (lines.size() == 1) {
      fmt::print("{}{:<20} {}\n", indent, name, lines[0]);
      continue;
    }
    fmt::print("{}{}\n", indent, name);
    for (const std::string& line : lines) fmt::print("{}  | {}\n", indent, line);
  }
}

void print_text(Json result) {
  const Json tensors = result.value("tensors", Json::array());
  result.erase("tensors");
  fmt::print("{}: {}\n", result["path"].get<std::string>(), result["kind"].get<std::string>());
  result.erase("path");
  result.erase("kind");
  print_fields(result, "  ");
  if (!tensors.empty()) fmt::print("  tensors\n");
  for (const Json& tensor : tensors)
    fmt::print("    {:<5} {:<16} {}\n", tensor["dtype"].get<std::string>(), tensor["shape"].dump(),
               tensor["name"].get<std::string>());
}

class Inspect : public Command {
 public:
  CommandSpec spec() override {
    return {.name = "inspect",
            .sentence =
                "show what is in a checkpoint, a run directory, a Hugging Face folder, a token file or a "
                "safetensors "
                "file",
            .usage = "PATH... [--verify] [--json]",
            .examples = {"cartan inspect runs/quickstart --verify", "cartan inspect data/corpus --json"},
            .uses = {"data.raw-type", "data.raw-end"},
            .options = {{.key = "verify",
                         .target = &verify_,
                         .help = "read everything: every checksum of a checkpoint, every token of a data set",
                         .is_flag = true},
                        {.key = "json", .target = &json_, .help = "one JSON object a line", .is_flag = true}},
            .short_names = {{"raw-type", "data.raw-type"}, {"raw-end", "data.raw-end"}},
            .words_name = "PATH...",
            .exit_codes = {ExitCode::done, ExitCode::usage, ExitCode::bad_data, ExitCode::missing_input,
                           ExitCode::io, ExitCode::configuration}};
  }

  int run(Parsed& parsed, comm::Session*) override {
    if (parsed.words.empty())
      throw UsageError("cartan inspect needs a checkpoint, a run directory or a token file's prefix");
    for (const std::string& path : parsed.words) {
      const Json result = inspect(path, data::raw_format_of(parsed.config.data), verify_);
      if (json_)
        fmt::print("{}\n", result.dump());
      else
        print_text(result);
    }
    return 0;
  }

 private:
  bool verify_ = false, json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_inspect() { return std::make_unique<Inspect>(); }

}  // namespace cartan::cli
