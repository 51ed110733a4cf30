#include "train/signals.hpp"

#include <unistd.h>

#include <array>
#include <csignal>
#include <system_error>

namespace cartan::train {
namespace {

constexpr std::array kSignals{SIGTERM, SIGINT, SIGUSR1, SIGUSR2};
volatile std::sig_atomic_t caught_signal = 0;
std::array<struct sigaction, kSignals.size()> former;

void on_signal(int signal) {
  const bool insists = signal == SIGINT || signal == SIGTERM;
  if (insists && caught_signal == signal) _exit(128 + signal);
  caught_signal = signal;
}

}  // namespace

SignalWatch::SignalWatch() {
  caught_signal = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &former[i]);
}

SignalWatch::~SignalWatch() {
  for (std::size_t i = 0; i < kSignals.size(); ++i)
    if (!retired_ || kSignals[i] == SIGINT) sigaction(kSignals[i], &former[i], nullptr);
}

void SignalWatch::retire() {
  for (const int signal : kSignals)
    if (signal != SIGINT) std::signal(signal, SIG_IGN);
  retired_ = true;
}

int SignalWatch::caught() const { return caught_signal; }

Request serve_switch_files(const std::filesystem::path& run_dir) {
  std::error_code ignored;  // no such file is the usual answer
  if (std::filesystem::remove(run_dir / "STOP", ignored)) return Request::stop;
  if (std::filesystem::remove(run_dir / "SAVE", ignored)) return Request::save;
  return Request::none;
}

}  // namespace cartan::train
