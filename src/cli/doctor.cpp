// cartan doctor: is this machine fit for the run?
#include "cartan/tools/doctor.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cartan/core/json.hpp"
#include "cli/command.hpp"
#include "cli/option_tables.hpp"
#include "cli/version_text.hpp"

namespace cartan::cli {
namespace {

using tools::Finding;
using tools::Health;

Json to_json(const std::vector<Finding>& findings, bool fit) {
  Json rows = Json::array();
  for (const Finding& finding : findings) {
    rows.push_back(
        {{"subject", finding.subject}, {"health", name_of(finding.health)}, {"text", finding.text}});
    if (!finding.advice.empty()) rows.back()["advice"] = finding.advice;
  }
  return {{"fit", fit}, {"program", version_text()}, {"findings", std::move(rows)}};
}

void print(const std::vector<Finding>& findings) {
  fmt::print("{}\n", version_text());
  for (const Finding& finding : findings) {
    fmt::print("{:8} {:8} {}\n", finding.subject, name_of(finding.health), finding.text);
    if (!finding.advice.empty()) fmt::print("{:8} {:8} -> {}\n", "", "", finding.advice);
  }
}

class Doctor : public Command {
 public:
  CommandSpec spec() override {
    return {
        .name = "doctor",
        .sentence =
            "tell whether this machine is fit for a run: MPI, CPUs, GPU, NCCL and its variables, the file "
            "system of run.dir; each is tried out, and what could be better is said",
        .usage = "[--json] [--config FILE]... [--section.name VALUE]...",
        .examples = {"cartan doctor", "srun --mpi=pmix cartan doctor --config run.ini --run.device cuda"},
        .uses = training_sections(),
        .options = {{.key = "json", .target = &json_, .help = "print one JSON object", .is_flag = true}},
        .exit_codes = {ExitCode::done, ExitCode::usage, ExitCode::missing_input, ExitCode::internal,
                       ExitCode::environment, ExitCode::configuration, ExitCode::peer}};
  }
  bool needs_mpi() const override { return true; }

  int run(Parsed& parsed, comm::Session* session) override {
    Problems problems;
    comm::check(parsed.config.nccl, problems);
    problems.throw_if_any("nccl");
    const std::vector<Finding> findings = tools::examine(parsed.config, *session);
    const auto bad = std::find_if(findings.begin(), findings.end(),
                                  [](const Finding& finding) { return finding.health == Health::bad; });
    if (session->rank() == 0) {
      if (json_)
        fmt::print("{}\n", to_json(findings, bad == findings.end()).dump());
      else
        print(findings);
    }
    if (bad != findings.end())
      throw EnvironmentError("not fit for this run: {}: {}", bad->subject, bad->text);
    return 0;
  }

 private:
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_doctor() { return std::make_unique<Doctor>(); }

}  // namespace cartan::cli
