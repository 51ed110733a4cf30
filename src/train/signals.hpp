// Signals and switch files: how a running job is asked to stop or to save.
#pragma once

#include <filesystem>

namespace cartan::train {

enum class Request { none = 0, save = 1, stop = 2 };

/// SIGTERM, SIGINT, SIGUSR1 and SIGUSR2 ask for a stop after the current step; a second SIGINT or SIGTERM
/// ends the process at once with 128 + signal. Restores the former handlers when destroyed.
class SignalWatch {
 public:
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;
  /// The signal that asked for a stop, or 0.
  int caught() const;
  /// The run is over: SIGTERM, SIGUSR1 and SIGUSR2 are ignored until the process ends. A launcher terminates
  /// the ranks that leave after the first one; their exit code has to be the run's nevertheless.
  void retire();

 private:
  bool retired_ = false;
};

/// Files named STOP and SAVE in the run directory; the file that is served is removed. For one rank.
Request serve_switch_files(const std::filesystem::path& run_dir);

}  // namespace cartan::train
