// `cartan export`: a checkpoint as a Hugging Face folder.
#include <fmt/format.h>

#include "cartan/comm/mesh_groups.hpp"
#include "cartan/core/text.hpp"
#include "cartan/train/export_model.hpp"
#include "cli/command.hpp"
#include "cli/model_options.hpp"
#include "cli/model_tokenizer.hpp"

namespace cartan::cli {
namespace {

class Export : public Command {
 public:
  CommandSpec spec() override {
    return {.name = "export",
            .sentence = "write a model, or its adapters, as a Hugging Face folder",
            .usage = "--from CHECKPOINT|RUN_DIR|FOLDER --output FOLDER [--dtype bf16|fp32|fp16] [--merge]",
            .examples = {"mpirun -n 4 cartan export --from runs/a/checkpoints/step-100.h5 --output my-model "
                         "--dtype fp32",
                         "cartan export --from runs/lora --output my-model --merge"},
            .options =
                {from_option(from_),
                 base_option(base_),
                 {.key = "merge",
                  .target = &merge_,
                  .help = "of a model with adapters: add them to the weights, instead of writing them alone "
                          "in PEFT's layout, in fp32",
                  .is_flag = true},
                 {.key = "output",
                  .target = &output_,
                  .help = "the folder to write",
                  .value_name = "FOLDER",
                  .is_required = true},
                 {.key = "dtype",
                  .target = &dtype_,
                  .help = "type of the parameters",
                  .words = {"fp32", "bf16", "fp16"}},
                 {.key = "family",
                  .target = &family_,
                  .help = "the model's name in config.json: llama, mistral, qwen2, qwen3 or phi3; nothing: "
                          "what it was imported as, or what fits",
                  .words = model::family_names(),
                  .may_be_empty = true},
                 {.key = "tokenizer",
                  .target = &tokenizer_,
                  .help = "a folder whose tokenizer files are passed on; nothing: that of the training",
                  .value_name = "FOLDER",
                  .may_be_empty = true},
                 {.key = "overwrite",
                  .target = &overwrite_,
                  .help = "write into a folder that is not empty, too",
                  .is_flag = true}},
            .exit_codes = {ExitCode::done, ExitCode::usage, ExitCode::bad_data, ExitCode::missing_input,
                           ExitCode::environment, ExitCode::io, ExitCode::configuration}};
  }
  bool needs_mpi() const override { return true; }

  int run(Parsed&, comm::Session* session) override {
    comm::Mesh mesh(*session, comm::resolve_mesh({}, session->world_size()));
    const train::ModelSource source(from_, mesh.world(), {.base = base_});
    model::ModelConfig config = source.config();
    if (!family_.empty()) config.family = family_;
    if (config.max_length == 0) config.max_length = length_of(source);  // a folder must say one
    store::FolderOptions options;
    options.dtype = dtype_from_name(dtype_);
    options.overwrite = overwrite_;
    options.tokenizer_from =
        tokenizer_.empty() ? tokenizer_folder_of(source) : std::filesystem::path(tokenizer_);
    if (!tokenizer_.empty() && !std::filesystem::is_directory(tokenizer_))
      throw MissingError("{}: no such folder", tokenizer_);
    const store::FolderReport report =
        train::export_model(source, config, output_, merge_, options, mesh.world());
    const bool writes_adapters = config.lora.rank > 0 && !merge_;
    if (session->rank() == 0)
      fmt::print("{}: {}{} in {} file{}, {}{}\n", output_, writes_adapters ? "adapters, " : "",
                 format_bytes(report.bytes), report.files, report.files == 1 ? "" : "s",
                 writes_adapters ? "fp32" : dtype_,
                 options.tokenizer_from.empty() ? ", without a tokenizer (--tokenizer FOLDER)"
                                                : ", tokenizer of " + options.tokenizer_from.string());
    return 0;
  }

 private:
  std::string from_, base_, output_, dtype_ = "bf16", family_, tokenizer_;
  bool overwrite_ = false, merge_ = false;
};

}  // namespace

std::unique_ptr<Command> make_export() { return std::make_unique<Export>(); }

}  // namespace cartan::cli
