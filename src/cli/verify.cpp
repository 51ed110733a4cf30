// `cartan verify`: the user's mesh against one rank, at toy size.
#include "cartan/train/verify.hpp"

#include "cartan/train/run_device.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>

#include "cartan/core/json.hpp"
#include "cli/command.hpp"
#include "cli/option_tables.hpp"

namespace cartan::cli {
namespace {

using train::Comparison;

std::string_view word_of(const Comparison& row, const train::Tolerance& tolerance) {
  switch (row.verdict) {
    case Comparison::Verdict::agrees:
      return tolerance.same_bits ? "same bits" : "agrees";
    case Comparison::Verdict::differs:
      return "DIFFERS";
    case Comparison::Verdict::not_compared:
      return "not compared";
  }
  throw InternalError("a verdict without a word");
}

std::string text_of(const train::Tolerance& tolerance) {
  if (tolerance.same_bits) return "expected: the same bits";
  return fmt::format(
      "expected: numbers within {:g}, tensors within {:g} of their norm (tp and cp split sums){}",
      tolerance.number, tolerance.tensor,
      tolerance.after_update ? "" : "; norms after an update and parameters are not compared in 16 bits");
}

void print_table(const train::Verification& verification) {
  const train::Config& toy = verification.toy;
  const model::ModelConfig& m = toy.model;
  fmt::print(
      "toy: {} layers, hidden {}, heads {}/{} of {}, ffn {}, vocabulary {}{}, {}\n"
      "     {} sequences of {} tokens, micro-batch {}, {} micro-batches a step, {} steps\n"
      "mesh {}, ZeRO {}\n{}\n\n{:<62} {:>4} {:>14} {:>14} {:>10}\n",
      m.layers, m.hidden, m.heads, m.kv_heads, m.head_dim, m.ffn, m.vocab, m.tied ? ", tied" : "",
      toy.precision.compute, toy.batch.global, toy.data.seq, toy.batch.micro, train::micro_batches(toy),
      train::kVerifiedSteps, comm::to_string(toy.mesh), toy.zero.stage, text_of(verification.tolerance),
      "quantity (of tensors the norm)", "step", "one rank", "mesh", "difference");
  for (const Comparison& row : verification.rows)
    fmt::print("{:<62} {:>4} {:>14.8g} {:>14.8g} {:>10.2g}  {}\n", row.quantity, row.step, row.one_rank,
               row.mesh, row.difference, word_of(row, verification.tolerance));
}

/// JSON has no NaN and no infinity.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

Json to_json(const train::Verification& verification, bool agrees) {
  const train::Config& toy = verification.toy;
  const train::Tolerance& tolerance = verification.tolerance;
  Json rows = Json::array();
  for (const Comparison& row : verification.rows)
    rows.push_back({{"quantity", row.quantity},
                    {"step", row.step},
                    {"tensor", row.is_tensor},
                    {"one_rank", number(row.one_rank)},
                    {"mesh", number(row.mesh)},
                    {"difference", number(row.difference)},
                    {"verdict", word_of(row, tolerance)}});
  Json expected{{"same_bits", tolerance.same_bits}};
  if (!tolerance.same_bits) expected.update(Json{{"number", tolerance.number}, {"tensor", tolerance.tensor}});
  return {{"agrees", agrees},
          {"mesh",
           {{"pp", toy.mesh.pp},
            {"dp", toy.mesh.dp},
            {"cp", toy.mesh.cp},
            {"tp", toy.mesh.tp},
            {"tp-grid", toy.mesh.tp_grid}}},
          {"zero", toy.zero.stage},
          {"compute", toy.precision.compute},
          {"steps", train::kVerifiedSteps},
          {"batch_global", toy.batch.global},
          {"batch_micro", toy.batch.micro},
          {"seq", toy.data.seq},
          {"model", model::to_json(toy.model)},
          {"expected", std::move(expected)},
          {"quantities", std::move(rows)}};
}

class Verify : public Command {
 public:
  CommandSpec spec() override {
    return {.name = "verify",
            .sentence =
                "check that a mesh computes what one rank computes: the configuration at toy size on "
                "both, loss, every gradient and every updated parameter compared",
            .usage = "[--json] [--from FILE] [--config FILE]... [--section.name VALUE]...",
            .examples = {"mpirun -n 8 cartan verify --config run.ini --tp 2 --pp 2 --zero 1",
                         "srun --mpi=pmix cartan verify --config run.ini --json"},
            .uses = training_sections(),
            .options = {{.key = "json", .target = &json_, .help = "print one JSON object", .is_flag = true}},
            .translates = true,
            .exit_codes = {ExitCode::done, ExitCode::usage, ExitCode::bad_data, ExitCode::missing_input,
                           ExitCode::internal, ExitCode::environment, ExitCode::configuration,
                           ExitCode::diverged, ExitCode::peer}};
  }
  bool needs_mpi() const override { return true; }

  int run(Parsed& parsed, comm::Session* session) override {
    // Batches are made up, so a configuration without data is complete.
    if (parsed.config.data.train.empty()) parsed.config.data.train = {"none"};
    resolve(parsed, session->world_size());
    if (parsed.config.run.threads == 0) parsed.config.run.threads = session->threads_of_rank();
    const auto device = train::make_run_device(parsed.config, *session);
    comm::Mesh mesh(*session, parsed.config.mesh, device->kind(),
                    {parsed.config.watch.of_mesh(), parsed.config.nccl});
    const train::Verification verification = verify(parsed, *session, mesh, *device);
    comm::all_or_none(mesh.world(), "the comparison with one rank", [&] {
      if (session->rank() == 0) report(verification);
    });
    return 0;
  }

 private:
  static train::Verification verify(const Parsed& parsed, comm::Session& session, comm::Mesh& mesh,
                                    device::Device& device) {
    try {
      return train::verify(parsed.config, session, mesh, device);
    } catch (const ConfigError& error) {
      throw ConfigError(with_sources(error.what(), parsed.sources));
    }
  }

  void report(const train::Verification& verification) const {
    const std::string difference = train::first_difference(verification.rows);
    if (json_)
      fmt::print("{}\n", to_json(verification, difference.empty()).dump());
    else
      print_table(verification);
    if (!difference.empty()) throw NumericError(difference);
    if (!json_) fmt::print("\nthe mesh gives the numbers of one rank\n");
  }

  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_verify() { return std::make_unique<Verify>(); }

}  // namespace cartan::cli
