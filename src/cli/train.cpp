// `cartan train`: train or go on training.
#include "cartan/comm/mesh_groups.hpp"
#include "cartan/train/run_device.hpp"
#include "cartan/train/trainer.hpp"

#include "cli/command.hpp"
#include "cli/option_tables.hpp"

namespace cartan::cli {
namespace {

class Train : public Command {
 public:
  CommandSpec spec() override {
    return {.name = "train",
            .sentence = "train a model; resumes by itself from the newest good checkpoint of run.dir",
            .usage = "[--config FILE]... [--section.name VALUE]...",
            .examples = {"mpirun -n 4 cartan train --config examples/quickstart.ini",
                         "srun --mpi=pmix cartan train --config run.ini --steps 2000 --run.dir runs/long"},
            .uses = training_sections(),
            .exit_codes = {ExitCode::done, ExitCode::usage, ExitCode::bad_data, ExitCode::missing_input,
                           ExitCode::internal, ExitCode::environment, ExitCode::io, ExitCode::stopped_early,
                           ExitCode::configuration, ExitCode::diverged, ExitCode::peer}};
  }
  bool needs_mpi() const override { return true; }

  int run(Parsed& parsed, comm::Session* session) override {
    resolve(parsed, session->world_size());
    if (parsed.config.run.threads == 0) parsed.config.run.threads = session->threads_of_rank();
    const auto device = train::make_run_device(parsed.config, *session);
    comm::Mesh mesh(*session, parsed.config.mesh, device->kind(),
                    {parsed.config.watch.of_mesh(), parsed.config.nccl});
    return static_cast<int>(
        train::run_training(parsed.config, to_ini(parsed.config, parsed.sources), *session, mesh, *device));
  }
};

}  // namespace

std::unique_ptr<Command> make_train() { return std::make_unique<Train>(); }

}  // namespace cartan::cli
