// Messages of errors that need more than one line to build.
#include "cartan/core/error.hpp"

#include <cstring>

namespace cartan {

void Problems::throw_if_any(std::string_view where) const {
  if (lines_.empty()) return;
  if (lines_.size() == 1) throw ConfigError(lines_.front());
  std::string text = fmt::format("{} problems in {}", lines_.size(), where);
  for (const std::string& line : lines_) text += "\n  " + line;
  throw ConfigError(text);
}

std::string errno_text(int error_number) {
  char buffer[256] = {};
  return strerror_r(error_number, buffer, sizeof buffer);  // the GNU variant returns the text
}

namespace detail {
void assertion_failed(const char* expression, const char* file, int line) {
  throw InternalError("defect in cartan: {} does not hold at {}:{}; please report it", expression, file,
                      line);
}
}  // namespace detail

}  // namespace cartan
