// What a command is. One file per command defines a class and a make_NAME() function; commands.cpp lists
// them.
//
//   class Generate : public Command {
//     CommandSpec spec() override;  // its options fill prompt_: {.key = "prompt", .target = &prompt_, ...}
//     bool needs_mpi() const override { return true; }
//     int run(Parsed& parsed, comm::Session* session) override;
//     std::string prompt_;
//   };
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cartan/comm/session.hpp"
#include "cli/options.hpp"

namespace cartan::cli {

class Command {
 public:
  virtual ~Command() = default;
  /// The options' targets are variables of this object.
  virtual CommandSpec spec() = 0;
  /// Whether run() gets an MPI session. Others work on a login node.
  virtual bool needs_mpi() const { return false; }
  /// Whether run() gets one where a launcher started several ranks, and none otherwise.
  virtual bool shares_a_job() const { return false; }
  /// Does the job; the options are in `parsed` and in the variables of spec(). Returns the exit code, the
  /// same on every rank. Throws Error: then the whole job ends with its code (run_program says how).
  virtual int run(Parsed& parsed, comm::Session* session) = 0;
};

struct CommandEntry {
  std::string name;
  std::unique_ptr<Command> (*make)();
};
/// In the order of the overview.
std::span<const CommandEntry> commands();

std::unique_ptr<Command> make_doctor();
std::unique_ptr<Command> make_export();
std::unique_ptr<Command> make_import();
std::unique_ptr<Command> make_train();
std::unique_ptr<Command> make_eval();
std::unique_ptr<Command> make_generate();
std::unique_ptr<Command> make_config();
std::unique_ptr<Command> make_inspect();
std::unique_ptr<Command> make_plan();
std::unique_ptr<Command> make_tokenize();
std::unique_ptr<Command> make_verify();

}  // namespace cartan::cli
