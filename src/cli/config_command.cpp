// `cartan config`: the merged configuration as INI, with the source of each value.
#include <fmt/format.h>

#include "cli/command.hpp"
#include "cli/option_tables.hpp"

namespace cartan::cli {
namespace {

class Config : public Command {
 public:
  CommandSpec spec() override {
    return {.name = "config",
            .sentence = "print the resolved configuration as INI, with the source of each value",
            .usage = "[--from FILE] [--config FILE]... [--ranks N] [--section.name VALUE]...",
            .examples = {"cartan config --config examples/quickstart.ini --steps 200",
                         "cartan config --from ds_config.json --data.train corpus --ranks 8 > run.ini"},
            .uses = training_sections(),
            .options = {{.key = "ranks",
                         .target = &ranks_,
                         .help = "derive and check what depends on the size of a job; 0: only merge",
                         .range = between(0, 1 << 20)}},
            .translates = true,
            .exit_codes = {ExitCode::done, ExitCode::usage, ExitCode::bad_data, ExitCode::missing_input,
                           ExitCode::configuration}};
  }

  int run(Parsed& parsed, comm::Session*) override {
    if (ranks_ > 0)
      resolve(parsed, ranks_);
    else
      complete_batch_without_ranks(parsed);
    fmt::print("{}", to_ini(parsed));
    return 0;
  }

 private:
  int ranks_ = 0;
};

}  // namespace

std::unique_ptr<Command> make_config() { return std::make_unique<Config>(); }

}  // namespace cartan::cli
