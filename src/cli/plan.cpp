// `cartan plan --bubble`: how long the stages of a pipeline would stand idle under each schedule.
#include <fmt/format.h>

#include <algorithm>

#include "cartan/core/json.hpp"
#include "cartan/pipeline/simulate.hpp"
#include "cli/command.hpp"
#include "cli/option_tables.hpp"

namespace cartan::cli {
namespace {

/// Stages * micro-batches * chunks: actions are simulated one by one, and beyond this many that takes seconds
/// and gigabytes.
constexpr double kMostActions = 1 << 22;

/// One row: a schedule, or why there is none.
struct Bubble {
  std::string schedule;
  int chunks = 1;
  bool is_configured = false;
  std::string problem = {};
  double idle_share = 0;
  double in_flight = 0;  ///< micro-batches in full on the first stage; a chunk counts as its part of one
};

/// The micro-batches of a step on a mesh of which mesh.dp = 0 means one replica.
Index resolve_micro_batches(train::Config& config) {
  if (config.mesh.dp == 0) config.mesh.dp = 1;
  Problems problems;
  train::check_batch(config, problems);
  if (problems.empty())
    pipeline::check(config.pipeline.schedule, config.mesh.pp, train::micro_batches(config),
                    config.pipeline.chunks, problems);
  problems.throw_if_any("the configuration");
  const Index count = train::micro_batches(config);
  if (static_cast<double>(count) * config.mesh.pp * std::max(2, config.pipeline.chunks) > kMostActions)
    throw ConfigError(
        "{} micro-batches on mesh.pp = {} stages are too many to simulate: use a larger batch.micro", count,
        config.mesh.pp);
  return count;
}

Bubble bubble_of(const train::Config& config, Index micro_batches, const std::string& kind, int chunks) {
  const int stages = config.mesh.pp;
  Bubble row{.schedule = kind,
             .chunks = chunks,
             .is_configured = kind == config.pipeline.schedule && chunks == config.pipeline.chunks};
  Problems problems;
  pipeline::check(kind, stages, micro_batches, row.chunks, problems);
  if (!problems.empty()) {
    row.problem = problems.lines().front();
    return row;
  }
  const pipeline::Schedule schedule = pipeline::make_schedule(kind, stages, micro_batches, row.chunks);
  row.idle_share = pipeline::simulate(schedule, {}).idle_share;
  row.in_flight = static_cast<double>(pipeline::in_flight(schedule, 0)) / row.chunks;
  return row;
}

std::vector<Bubble> bubbles_of(const train::Config& config, Index micro_batches) {
  std::vector<Bubble> rows;
  for (const std::string& kind : pipeline::schedule_kinds()) {
    const bool is_interleaved = kind == "interleaved";
    if (!is_interleaved || config.mesh.pp == 1 || kind == config.pipeline.schedule)
      rows.push_back(bubble_of(config, micro_batches, kind, is_interleaved ? config.pipeline.chunks : 1));
    // What makes this schedule worth a look, whether it is asked for or not.
    if (is_interleaved && config.mesh.pp > 1 && config.pipeline.chunks == 1)
      rows.push_back(bubble_of(config, micro_batches, kind, 2));
  }
  return rows;
}

Json to_json(const train::Config& config, Index micro_batches, const std::vector<Bubble>& rows) {
  Json schedules = Json::array();
  for (const Bubble& row : rows) {
    const bool is_possible = row.problem.empty();
    Json entry{{"schedule", row.schedule},
               {"chunks", row.chunks},
               {"configured", row.is_configured},
               {"idle_share", is_possible ? Json(row.idle_share) : Json()},
               {"in_flight", is_possible ? Json(row.in_flight) : Json()}};
    if (!is_possible) entry["problem"] = row.problem;
    schedules.push_back(std::move(entry));
  }
  return {{"stages", config.mesh.pp},
          {"micro_batches", micro_batches},
          {"batch_global", config.batch.global},
          {"batch_micro", config.batch.micro},
          {"dp", config.mesh.dp},
          {"schedules", std::move(schedules)}};
}

void print_table(const train::Config& config, Index micro_batches, const std::vector<Bubble>& rows) {
  fmt::print(
      "{} stages, {} micro-batches a step (batch.global {} / (batch.micro {} * mesh.dp {}))\n"
      "Forward, input gradients and weight gradients take equally long; transfers take no time.\n\n"
      "  schedule     chunks     idle  in flight\n",
      config.mesh.pp, micro_batches, config.batch.global, config.batch.micro, config.mesh.dp);
  for (const Bubble& row : rows) {
    fmt::print("{} {:<11} {:>7}", row.is_configured ? '*' : ' ', row.schedule, row.chunks);
    if (row.problem.empty())
      fmt::print("   {:>4.1f} %  {:>9.4g}\n", 100 * row.idle_share, row.in_flight);
    else
      fmt::print("   {:>6}  {:>9}\n", "-", "-");
  }
  for (const Bubble& row : rows) {
    if (!row.problem.empty()) fmt::print("\n{}\n", row.problem);
  }
  fmt::print(
      "\nidle: share of the step that a stage waits; in flight: micro-batches whose activations the first "
      "stage "
      "keeps.\n* pipeline.schedule\n");
}

void print_drawing(const train::Config& config, Index micro_batches) {
  const pipeline::Schedule schedule = pipeline::make_schedule(config.pipeline.schedule, config.mesh.pp,
                                                              micro_batches, config.pipeline.chunks);
  fmt::print("\n{}{}\n{}",
             schedule.name == "zero-bubble" ? "F forward, B input gradients, W weight gradients"
                                            : "F forward, B backward",
             schedule.chunks > 1 ? ", with micro-batch and chunk" : ", with micro-batch",
             pipeline::draw(pipeline::simulate(schedule, {})));
}

class Plan : public Command {
 public:
  CommandSpec spec() override {
    return {
        .name = "plan",
        .sentence = "show how long the stages of a pipeline stand idle under each schedule",
        .usage = "--bubble [--draw | --json] [--from FILE] [--config FILE]... [--section.name VALUE]...",
        .examples = {"cartan plan --bubble --pp 4 --batch.global 8 --batch.micro 1",
                     "cartan plan --bubble --draw --config run.ini --pipeline.schedule zero-bubble"},
        .uses = training_sections(),
        .options = {{.key = "bubble",
                     .target = &bubble_,
                     .help = "the idle share of each schedule for mesh.pp stages and the micro-batches of a "
                             "step, batch.global / (batch.micro * mesh.dp); mesh.dp = 0 counts as 1 here",
                     .is_flag = true},
                    {.key = "draw",
                     .target = &draw_,
                     .help = "draw the timeline of pipeline.schedule",
                     .is_flag = true},
                    {.key = "json", .target = &json_, .help = "one JSON object", .is_flag = true}},
        .translates = true,
        .exit_codes = {ExitCode::done, ExitCode::usage, ExitCode::bad_data, ExitCode::missing_input,
                       ExitCode::configuration}};
  }

  int run(Parsed& parsed, comm::Session*) override {
    if (!bubble_)
      throw UsageError("cartan plan needs --bubble: the idle time of pipelines is what this version plans");
    if (draw_ && json_) throw UsageError("--draw and --json exclude each other");
    complete_batch_without_ranks(parsed);
    train::Config& config = parsed.config;
    try {
      const Index micro_batches = resolve_micro_batches(config);
      const std::vector<Bubble> rows = bubbles_of(config, micro_batches);
      if (json_)
        fmt::print("{}\n", to_json(config, micro_batches, rows).dump());
      else
        print_table(config, micro_batches, rows);
      if (draw_) print_drawing(config, micro_batches);
    } catch (const ConfigError& error) {
      throw ConfigError(with_sources(error.what(), parsed.sources));
    }
    return 0;
  }

 private:
  bool bubble_ = false, draw_ = false, json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_plan() { return std::make_unique<Plan>(); }

}  // namespace cartan::cli
