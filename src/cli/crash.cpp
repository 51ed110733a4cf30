#include "cli/crash.hpp"

#include <execinfo.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <string>
#include <string_view>

#include "cartan/core/error.hpp"

namespace cartan::cli {
namespace {

std::string rank_text;  // written before the handlers are installed, read by them

std::string_view name_of_signal(int number) {
  switch (number) {
    case SIGSEGV:
      return "SIGSEGV";
    case SIGBUS:
      return "SIGBUS (a file shrank while it was mapped, or a defect)";
    case SIGFPE:
      return "SIGFPE";
    case SIGILL:
      return "SIGILL";
    default:
      return "SIGABRT";
  }
}

void put(std::string_view text) {
  // Nothing is left to do if stderr is gone.
  [[maybe_unused]] const auto written = write(STDERR_FILENO, text.data(), text.size());
}

/// Calls only what is safe in a signal handler.
extern "C" void on_crash(int number) {
  put("cartan: ");
  put(rank_text);
  put("crashed with ");
  put(name_of_signal(number));
  put("; please report it with this stack:\n");
  std::array<void*, 64> frames;
  backtrace_symbols_fd(frames.data(), backtrace(frames.data(), static_cast<int>(frames.size())),
                       STDERR_FILENO);
  _exit(static_cast<int>(ExitCode::internal));
}

}  // namespace

void install_crash_handlers([[maybe_unused]] int rank) {
#ifndef CARTAN_SANITIZED
  rank_text = fmt::format("rank {}: ", rank);
  std::array<void*, 1> frame;
  backtrace(frame.data(), 1);  // loads what a first call would load inside the handler
  struct sigaction action = {};
  action.sa_handler = on_crash;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigaction(number, &action, nullptr);
#endif
}

}  // namespace cartan::cli
