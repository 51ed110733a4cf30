// Errors name the culprit: one subclass of Error for each exit code of the program.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cartan {

/// Exit codes of every command, after sysexits.
enum class ExitCode : int {
  done = 0,
  usage = 64,
  bad_data = 65,
  missing_input = 66,
  internal = 70,
  environment = 71,
  io = 74,
  stopped_early = 75,
  configuration = 78,
  diverged = 79,
  peer = 80,
};

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const noexcept { return code_; }

 private:
  ExitCode code_;
};

/// Defines one subclass; its constructor formats: throw DataError("{}: {} bytes", path, size).
#define CARTAN_DEFINE_ERROR(Name, exit_code)                                                      \
  class Name : public Error {                                                                     \
   public:                                                                                        \
    explicit Name(const std::string& message) : Error(ExitCode::exit_code, message) {}            \
    template <class... Args>                                                                      \
    requires(sizeof...(Args) > 0) explicit Name(fmt::format_string<Args...> text, Args&&... args) \
        : Error(ExitCode::exit_code, fmt::format(text, std::forward<Args>(args)...)) {}           \
  }

CARTAN_DEFINE_ERROR(UsageError, usage);              ///< wrong words on the command line
CARTAN_DEFINE_ERROR(DataError, bad_data);            ///< a file holds what it must not
CARTAN_DEFINE_ERROR(MissingError, missing_input);    ///< a file is not there
CARTAN_DEFINE_ERROR(InternalError, internal);        ///< a defect of cartan
CARTAN_DEFINE_ERROR(EnvironmentError, environment);  ///< MPI, device, driver
CARTAN_DEFINE_ERROR(IoError, io);                    ///< reading or writing failed
CARTAN_DEFINE_ERROR(ConfigError, configuration);     ///< a configuration that cannot work
CARTAN_DEFINE_ERROR(NumericError, diverged);         ///< NaN or infinity in the numbers
CARTAN_DEFINE_ERROR(PeerError, peer);                ///< another rank failed, hung or died

#undef CARTAN_DEFINE_ERROR

/// Gathers every problem of a validation, so that the user sees them all at once.
class Problems {
 public:
  template <class... Args>
  void add(fmt::format_string<Args...> text, Args&&... args) {
    lines_.push_back(fmt::format(text, std::forward<Args>(args)...));
  }
  bool empty() const noexcept { return lines_.empty(); }
  const std::vector<std::string>& lines() const noexcept { return lines_; }
  /// Throws ConfigError: the one problem, or "N problems in `where`" and a line each. Returns if there are
  /// none.
  void throw_if_any(std::string_view where) const;

 private:
  std::vector<std::string> lines_;
};

/// The sentence for an errno value, as "No space left on device".
std::string errno_text(int error_number);

namespace detail {
[[noreturn]] void assertion_failed(const char* expression, const char* file, int line);
}

}  // namespace cartan

/// Holds in all builds; a failure is a defect of cartan and leaves with exit code 70.
#define CARTAN_ASSERT(expression) \
  ((expression) ? void(0) : ::cartan::detail::assertion_failed(#expression, __FILE__, __LINE__))

/// For inner loops: checked in debug builds only.
#ifdef NDEBUG
#define CARTAN_DEBUG_ASSERT(expression) void(0)
#else
#define CARTAN_DEBUG_ASSERT(expression) CARTAN_ASSERT(expression)
#endif
