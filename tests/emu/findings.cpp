#include "findings.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "runtime.h"

namespace emu {
namespace {

// Never destroyed: the progress thread may outlive main.
std::mutex& mutex = *new std::mutex;
std::vector<std::string>& reports = *new std::vector<std::string>;

constexpr int kExitCode = 99;

void print(const std::string& finding) { std::fprintf(stderr, "emu[%d]: %s\n", getpid(), finding.c_str()); }

void fail_if_any_is_left() {
  const std::lock_guard lock(mutex);
  if (reports.empty()) return;
  if (!config.print)
    for (const std::string& finding : reports) print(finding);
  std::fflush(nullptr);
  _exit(kExitCode);
}

}  // namespace

void report(std::string finding) {
  const std::lock_guard lock(mutex);
  static const int registered = std::atexit(fail_if_any_is_left);
  static_cast<void>(registered);
  if (config.print) print(finding);
  reports.push_back(std::move(finding));
}

std::vector<std::string> take_reports() {
  forget_reported();
  const std::lock_guard lock(mutex);
  return std::exchange(reports, {});
}

bool is_to_fail(const char* call) {
  static std::mutex& counting = *new std::mutex;
  const std::lock_guard lock(counting);
  Failure& failure = config.failure;
  return failure.number > 0 && failure.call == call && ++failure.calls == failure.number;
}

}  // namespace emu
