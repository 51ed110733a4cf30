// `cartan train`: train or go on training.
#include "cartan/comm/mesh_groups.hpp"
#include "cartan/core/log.hpp"
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
            .usage = "[--from FILE] [--config FILE]... [--section.name VALUE]...",
            .examples = {"mpirun -n 4 cartan train --config examples/quickstart.ini",
                         "srun --mpi=pmix cartan train --config run.ini --steps 2000 --run.dir runs/long"},
            .uses = training_sections(),
            .translates = true,
            .exit_codes = {ExitCode::done, ExitCode::usage, ExitCode::bad_data, ExitCode::missing_input,
                           ExitCode::internal, ExitCode::environment, ExitCode::io, ExitCode::stopped_early,
                           ExitCode::configuration, ExitCode::diverged, ExitCode::peer}};
  }
  bool needs_mpi() const override { return true; }

  int run(Parsed& parsed, comm::Session* session) override {
    resolve(parsed, session->world_size());
    log_translation(parsed);
    if (parsed.config.run.threads == 0) parsed.config.run.threads = session->threads_of_rank();
    const auto device = train::make_run_device(parsed.config, *session);
    comm::Mesh mesh(*session, parsed.config.mesh, device->kind(),
                    {parsed.config.watch.of_mesh(), parsed.config.nccl});
    return static_cast<int>(train::run_training(parsed.config, to_ini(parsed), *session, mesh, *device));
  }

 private:
  /// The lists themselves are in config.ini.
  static void log_translation(const Parsed& parsed) {
    if (!parsed.translation) return;
    const foreign::Translation& translation = *parsed.translation;
    log::info("config", "{} is read as a configuration of {}: {} values; config.ini in run.dir lists them",
              translation.path, translation.format, translation.settings.size());
    for (const foreign::Remark& remark : translation.unknown)
      log::info("config", "{}: {} = {} is not used: {}", translation.path, printable(remark.foreign),
                remark.value, remark.why);
  }
};

}  // namespace

std::unique_ptr<Command> make_train() { return std::make_unique<Train>(); }

}  // namespace cartan::cli
