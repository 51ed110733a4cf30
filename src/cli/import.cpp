// `cartan import`: a Hugging Face folder as a checkpoint.
#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "cartan/comm/mesh_groups.hpp"
#include "cartan/core/canonical_tree.hpp"
#include "cartan/core/json.hpp"
#include "cartan/core/text.hpp"
#include "cartan/store/checkpoint.hpp"
#include "cartan/train/model_source.hpp"
#include "cli/command.hpp"
#include "cli/ini.hpp"

namespace cartan::cli {
namespace {

class Import : public Command {
 public:
  CommandSpec spec() override {
    return {.name = "import",
            .sentence = "turn a Hugging Face folder into a checkpoint without states of an optimizer",
            .usage = "--from FOLDER --output FILE.h5",
            .examples = {"cartan import --from Llama-3.2-1B --output llama.h5",
                         "mpirun -n 4 cartan import --from Llama-3.2-1B --output llama.h5"},
            .options = {{.key = "from",
                         .target = &from_,
                         .help = "a Hugging Face folder",
                         .value_name = "FOLDER",
                         .is_required = true},
                        {.key = "output",
                         .target = &output_,
                         .help = "the checkpoint to write; model.from and --from take it",
                         .value_name = "FILE",
                         .is_required = true}},
            .exit_codes = {ExitCode::done, ExitCode::usage, ExitCode::bad_data, ExitCode::missing_input,
                           ExitCode::environment, ExitCode::io, ExitCode::configuration}};
  }
  bool needs_mpi() const override { return true; }

  int run(Parsed&, comm::Session* session) override {
    comm::Mesh mesh(*session, comm::resolve_mesh({}, session->world_size()));
    if (!output_.ends_with(".h5")) throw UsageError("--output {}: must end in .h5", output_);
    const train::ModelSource source(from_, mesh.world());
    // Each rank has its share of every parameter in memory.
    std::vector<store::TensorInfo> tensors;
    std::vector<store::Slab> slabs;
    std::deque<std::vector<float>> values;
    comm::all_or_none(mesh.world(), "reading the model", [&] {
      for (const model::UnitSpec& unit : model::describe_units(source.config()))
        for (const model::ParameterSpec& parameter : unit.parameters) {
          tensors.push_back({train::parameter_path(parameter.name), DType::f32, parameter.shape});
          const LeafRange own = leaf_range(parameter.elements(), session->rank(), session->world_size());
          const Index count = own.end - own.begin;
          if (count == 0) continue;
          auto& mine = values.emplace_back(static_cast<std::size_t>(count));
          source.read(parameter.name, own.begin, count, mine.data());
          slabs.push_back({tensors.size() - 1, own.begin, count, mine.data()});
        }
    });
    // As that of a training that began with the folder: exports look there for its tokenizer.
    const std::string ini =
        fmt::format("[model]\nfrom = {}\n", ini_value(std::filesystem::absolute(from_).string()));
    const store::WriteReport report =
        store::write_checkpoint(output_, train::to_json(train::RunState{}, source.config(), 0, ini), tensors,
                                slabs, mesh.world(), {});
    if (session->rank() == 0)
      fmt::print("{}: {} parameters of {}, {}\n", output_,
                 format_count(static_cast<std::uint64_t>(model::parameter_count(source.config()))), from_,
                 format_bytes(report.bytes));
    return 0;
  }

 private:
  std::string from_, output_;
};

}  // namespace

std::unique_ptr<Command> make_import() { return std::make_unique<Import>(); }

}  // namespace cartan::cli
