#include "cli/program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "cartan/core/error.hpp"
#include "cartan/core/log.hpp"
#include "cartan/core/text.hpp"
#include "cartan/store/checkpoint.hpp"
#include "cli/command.hpp"
#include "cli/crash.hpp"
#include "cli/help.hpp"
#include "cli/version_text.hpp"

namespace cartan::cli {
namespace {

/// Where this process stands, for whoever catches an error: before MPI starts, what the launcher says.
struct Place {
  int rank = 0;
  int world_size = 1;
  bool has_mpi = false;
};

Place launched_place() {
  Place place;
  const auto number = [](const char* name) {
    const char* text = std::getenv(name);
    return text ? std::optional<int>(std::atoi(text)) : std::nullopt;
  };
  for (const char* name : {"PMIX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    if (const auto rank = number(name)) {
      place.rank = *rank;
      break;
    }
  }
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    if (const auto size = number(name)) {
      place.world_size = *size;
      break;
    }
  }
  return place;
}

struct Failure {
  int code = 0;
  std::string message;
};

Failure describe_current_exception() {
  try {
    throw;
  } catch (const Error& error) {
    return {static_cast<int>(error.code()), error.what()};
  } catch (const std::bad_alloc&) {
    return {static_cast<int>(ExitCode::environment), "out of memory: use a smaller model, batch or sequence"};
  } catch (const std::system_error& error) {  // files and standard output
    return {static_cast<int>(ExitCode::io), error.what()};
  } catch (const std::exception& error) {
    return {static_cast<int>(ExitCode::internal),
            fmt::format("defect in cartan: {}; please report it", error.what())};
  } catch (...) {
    return {static_cast<int>(ExitCode::internal), "defect in cartan: unknown exception; please report it"};
  }
}

/// Words, and files that all ranks share.
bool is_same_on_all_ranks(int code) {
  return code == static_cast<int>(ExitCode::usage) || code == static_cast<int>(ExitCode::configuration);
}

/// Long enough for a busy launcher to end the job after a better message.
std::chrono::milliseconds wait_before_speaking(int code, const Place& place) {
  using namespace std::chrono_literals;
  if (place.world_size == 1) return 0ms;
  auto wait = 0ms;
  if (code == static_cast<int>(ExitCode::peer)) wait += 4000ms;
  if (place.rank > 0)
    wait += (is_same_on_all_ranks(code) ? 10000ms : 2000ms) + 50ms * std::min(place.rank, 20);
  return wait;
}

/// Reports the exception in flight and ends the process, under MPI the whole job.
int fail(const Place& place) {
  const Failure failure = describe_current_exception();
  std::this_thread::sleep_for(wait_before_speaking(failure.code, place));
  std::fflush(stdout);
  const bool names_rank = place.world_size > 1 && !(place.rank == 0 && is_same_on_all_ranks(failure.code));
  const std::string text =
      fmt::format("cartan: {}{}\n", names_rank ? fmt::format("rank {}: ", place.rank) : "", failure.message);
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
  if (place.has_mpi && place.world_size > 1) comm::Session::abort(failure.code);
  if (place.has_mpi)
    std::_Exit(failure.code);  // alone: nobody to abort, and MPI is not finalized after a failure
  return failure.code;
}

bool asks_for_help(const std::vector<std::string>& words) {
  return std::any_of(words.begin(), words.end(),
                     [](const std::string& word) { return word == "--help" || word == "-h"; });
}

std::unique_ptr<Command> find_command(std::span<const CommandEntry> commands, const std::string& name) {
  std::vector<std::string> names;
  for (const CommandEntry& entry : commands) {
    if (entry.name == name) return entry.make();
    names.push_back(entry.name);
  }
  const auto later = later_commands();
  if (std::find(later.begin(), later.end(), name) != later.end())
    throw UsageError("this version of cartan has no command {} (cartan --help lists those it has)", name);
  const auto near = nearest(std::string_view(name).substr(0, 64), names);
  throw UsageError("unknown command {}{}", printable(name),
                   near ? fmt::format(" (did you mean {}?)", *near) : " (cartan --help lists the commands)");
}

int run_command(Command& command, const std::vector<std::string>& words, int argc, char** argv,
                Place& place) {
  const CommandSpec spec = command.spec();
  if (asks_for_help(words)) {
    fmt::print("{}", help_text(spec));
    return 0;
  }
  Parsed parsed = parse(spec, words);
  const bool is_shared = command.shares_a_job() && place.world_size > 1;
  if (!command.needs_mpi() && !is_shared) return command.run(parsed, nullptr);

  store::prepare_environment();
  comm::Session session(argc, argv);
  place = {session.rank(), session.world_size(), true};
  log::set_rank(place.rank, place.world_size);
  install_crash_handlers(place.rank);  // after MPI_Init, which would warn about handlers that are there
  return command.run(parsed, &session);
}

int dispatch(std::span<const CommandEntry> commands, const std::vector<std::string>& words, int argc,
             char** argv, Place& place) {
  const std::string& first = words[0];
  const std::vector<std::string> rest(words.begin() + 1, words.end());
  if (first == "--version") {
    fmt::print("{}", version_text());
  } else if (first == "--help" || first == "-h" || (first == "help" && rest.empty())) {
    fmt::print("{}", overview_text(commands));
  } else if (first == "help") {
    fmt::print("{}", help_text(find_command(commands, rest[0])->spec()));
  } else if (first.starts_with("-")) {
    throw UsageError("expected a command before {}, as in: cartan train {}", printable(first),
                     printable(first));
  } else {
    return run_command(*find_command(commands, first), rest, argc, argv, place);
  }
  return 0;
}

}  // namespace

int run_program(int argc, char** argv, std::span<const CommandEntry> commands) {
  Place place = launched_place();
  const std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  if (words.empty()) {
    std::fputs(overview_text(commands).c_str(), stderr);
    return static_cast<int>(ExitCode::usage);
  }
  try {
    const int code = dispatch(commands, words, argc, argv, place);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
      throw IoError("cannot write to standard output: {}", errno_text(errno));
    return code;
  } catch (...) {
    return fail(place);
  }
}

std::span<const std::string> later_commands() {
  static const std::array<std::string, 3> names{"bench", "diff", "report"};
  return names;
}

}  // namespace cartan::cli
