#include "settings.hpp"

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace emu {
namespace {

std::string text(const char* variable) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

/// A test that runs with other settings than somebody asked for would prove nothing.
[[noreturn]] void refuse(const char* variable, const std::string& value, const char* expected) {
  std::fprintf(stderr, "emu: %s=%s: expected %s\n", variable, value.c_str(), expected);
  std::exit(2);
}

double number(const char* variable, double otherwise) {
  const std::string value = text(variable);
  if (value.empty()) return otherwise;
  char* end = nullptr;
  const double result = std::strtod(value.c_str(), &end);
  if (*end != '\0' || result < 0) refuse(variable, value, "a number");
  return result;
}

bool flag(const char* variable) {
  const std::string value = text(variable);
  if (value.empty() || value == "0") return false;
  if (value != "1") refuse(variable, value, "0 or 1");
  return true;
}

/// The number behind `prefix`, if the value is "prefixN".
bool parse_seed(std::string_view value, std::string_view prefix, unsigned& seed) {
  if (!value.starts_with(prefix)) return false;
  const std::string digits(value.substr(prefix.size()));
  char* end = nullptr;
  seed = static_cast<unsigned>(std::strtoul(digits.c_str(), &end, 10));
  return !digits.empty() && *end == '\0';
}

void read_schedule(Config& config) {
  const std::string value = text("EMU_SCHEDULE");
  if (value.empty() || value == "eager")
    config.schedule = Schedule::eager;
  else if (value == "lazy")
    config.schedule = Schedule::lazy;
  else if (parse_seed(value, "random:", config.seed))
    config.schedule = Schedule::random;
  else
    refuse("EMU_SCHEDULE", value, "eager, lazy or random:SEED");
}

Failure read_failure() {
  const std::string value = text("EMU_FAIL");
  if (value.empty()) return {};
  const auto colon = value.find(':');
  const auto at = value.find('@');
  Failure failure;
  failure.call = value.substr(0, colon);
  if (colon != value.npos) failure.number = std::atoi(value.c_str() + colon + 1);
  if (failure.number < 1) refuse("EMU_FAIL", value, "CALL:N or CALL:N@RANK");
  if (at != value.npos && value.substr(at + 1) != text("OMPI_COMM_WORLD_RANK")) return {};
  return failure;
}

}  // namespace

Config config_from_environment() {
  Config config;
  read_schedule(config);
  config.race = flag("EMU_CHECK");
  config.print = flag("EMU_PRINT");
  config.profile = flag("EMU_PROFILE");
  config.timeout_s = number("EMU_TIMEOUT", config.timeout_s);
  config.device_bytes =
      static_cast<std::size_t>(number("EMU_DEVICE_BYTES", static_cast<double>(config.device_bytes)));
  config.gpus = static_cast<int>(number("EMU_GPUS", config.gpus));
  config.has_driver = !flag("EMU_NO_DRIVER");
  config.multiprocessors = static_cast<int>(number("EMU_MULTIPROCESSORS", config.multiprocessors));
  const double own_bus = 1 + (config.gpus == 1 ? number("OMPI_COMM_WORLD_LOCAL_RANK", 0) : 0);
  config.first_bus = static_cast<int>(number("EMU_PCI_BUS", own_bus));
  config.failure = read_failure();
  return config;
}

Policy policy_from_environment() {
  const std::string value = text("EMU_ORDER");
  Policy policy;
  if (value.empty() || value == "forward")
    policy.order = Order::forward;
  else if (value == "reverse")
    policy.order = Order::reverse;
  else if (parse_seed(value, "shuffled:", policy.seed))
    policy.order = Order::shuffled;
  else
    refuse("EMU_ORDER", value, "forward, reverse or shuffled:SEED");
  return policy;
}

Config config = config_from_environment();
Policy policy = policy_from_environment();

}  // namespace emu
