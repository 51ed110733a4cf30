// Dispatch, exit codes and messages of `cartan ...`, called as a function.
#include "cli/program.hpp"

#include <gmock/gmock.h>

#include "cartan/core/json.hpp"
#include "cartan/device/cuda_info.hpp"
#include "cli/command.hpp"
#include "cli/help.hpp"
#include "cli/program_run.hpp"
#include "cli/temporary_directory.hpp"

namespace cartan::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

TEST(Program, VersionNamesTheLibraries) {
  const Outcome outcome = run({"--version"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out,
              AllOf(StartsWith("cartan "), HasSubstr("\nMPI "), HasSubstr("\nHDF5 "),
                    HasSubstr("parallel: yes"), HasSubstr("\noneDNN "), HasSubstr("\ncompiler ")));
}

TEST(Program, VersionSaysWhetherThereIsCuda) {
  const bool has_cuda = !device::cuda_version().empty();
  EXPECT_THAT(run({"--version"}).out,
              has_cuda ? testing::ContainsRegex("\nCUDA      1[0-9]\\.[0-9], NCCL 2\\.[0-9]+\\.[0-9]+\n")
                       : testing::ContainsRegex("\nCUDA      no \\(run.device = cpu only\\)\n"));
}

TEST(Program, HelpListsTheCommands) {
  const Outcome outcome = run({"--help"});
  EXPECT_EQ(outcome.code, 0);
  for (const CommandEntry& command : commands())
    EXPECT_THAT(outcome.out, HasSubstr("\n  " + command.name + " "));
  EXPECT_EQ(run({"help"}).out, outcome.out);
  EXPECT_EQ(run({"-h"}).out, outcome.out);
}

TEST(Program, EveryCommandHasHelpAndTwoExamples) {
  for (const CommandEntry& command : commands()) {
    const Outcome outcome = run({command.name, "--help"});
    EXPECT_EQ(outcome.code, 0) << command.name;
    EXPECT_THAT(outcome.out, AllOf(HasSubstr("usage: cartan " + command.name), HasSubstr("exit codes:")));
    EXPECT_EQ(run({"help", command.name}).out, outcome.out);
    EXPECT_EQ(command.make()->spec().name, command.name);
    EXPECT_EQ(command.make()->spec().examples.size(), 2u) << command.name;
  }
}

TEST(Program, UnknownCommandsAreUsageErrors) {
  const Outcome near = run({"inspekt"});
  EXPECT_EQ(near.code, 64);
  EXPECT_EQ(near.err, "cartan: unknown command inspekt (did you mean inspect?)\n");
  EXPECT_THAT(near.out, IsEmpty());
  EXPECT_EQ(run({"help", "inspekt"}).err, near.err);
  EXPECT_EQ(run({}).code, 64);
  EXPECT_THAT(run({"--steps", "3"}).err, HasSubstr("expected a command before --steps"));
}

TEST(Program, CommandsOfLaterVersionsAreNamedAsSuch) {
  for (const std::string& name : later_commands()) {
    const Outcome outcome = run({name, "x"});
    EXPECT_EQ(outcome.code, 64);
    EXPECT_THAT(outcome.err, HasSubstr("this version of cartan has no command " + name));
  }
}

TEST(ConfigCommand, PrintsWhatReadsBackAsTheSame) {
  const TemporaryDirectory directory;
  const Outcome first = run({"config", "--steps", "7", "--optim.lr", "0.1"});
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.out,
              AllOf(HasSubstr("\nsteps = 7 "), HasSubstr("# command line"), HasSubstr("\nlr = 0.1 ")));
  const std::string file = directory.file("a.ini", first.out);
  const Outcome second = run({"config", "--config", file});
  const std::string third = run({"config", "--config", directory.file("b.ini", second.out)}).out;
  const auto without_comments = [](const std::string& text) {
    std::string out;
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = text.find('\n', begin);
      const std::string line = text.substr(begin, end - begin);
      out += line.substr(0, line.find('#')) + "\n";
      begin = end + 1;
    }
    return out;
  };
  EXPECT_EQ(without_comments(second.out), without_comments(first.out));
  EXPECT_EQ(without_comments(third), without_comments(first.out));
}

TEST(ConfigCommand, DerivesForAJobOfSomeSize) {
  const Outcome outcome = run({"config", "--ranks", "2", "--batch.global", "8", "--data.train", "corpus"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("\ndp = 2 "), HasSubstr("# derived")));
}

TEST(TokenizeAndInspect, WorkOnEachOther) {
  const TemporaryDirectory directory;
  const std::string text = directory.file("a.txt", "hello"), prefix = directory.path("corpus");
  const Outcome made = run({"tokenize", "--input", text, "--output", prefix, "--tokenizer", "byte"});
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("1 documents, 6 tokens from 1 files"));

  const Outcome shown = run({"inspect", prefix, "--verify", "--json"});
  ASSERT_EQ(shown.code, 0) << shown.err;
  const Json json = parse_json(shown.out, "stdout");
  EXPECT_EQ(json.at("kind"), "dataset");
  EXPECT_EQ(json.at("tokens"), 6);
  EXPECT_EQ(json.at("verified"), true);
  EXPECT_THAT(run({"inspect", prefix + ".idx"}).out,
              AllOf(HasSubstr(prefix + ": dataset\n"), HasSubstr("tokens")));
}

TEST(Tokenize, NamesWhatIsMissing) {
  EXPECT_THAT(run({"tokenize", "--input", "x"}).err, HasSubstr("cartan tokenize needs --output PREFIX"));
  EXPECT_EQ(run({"tokenize", "--input", "/nonexistent", "--output", "x"}).code, 66);
  EXPECT_EQ(run({"tokenize", "--input", "x", "--output", "y", "--tokenizer", "bite"}).code, 78);
}

TEST(Inspect, NamesWhatItCannotRead) {
  const TemporaryDirectory directory;
  EXPECT_EQ(run({"inspect"}).code, 64);
  EXPECT_EQ(run({"inspect", directory.path("nothing")}).code, 66);
  EXPECT_EQ(run({"inspect", directory.path("")}).code, 66);
  EXPECT_EQ(run({"inspect", directory.file("a.h5", "no checkpoint")}).code, 65);
  directory.file("b.bin", "");
  EXPECT_EQ(run({"inspect", directory.file("b.idx", "no index")}).code, 65);
}

}  // namespace
}  // namespace cartan::cli
