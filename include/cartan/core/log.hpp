// The log on stderr: one line an event, from rank 0; other ranks speak only to warn.
//   12:03:07 I r000 train  step 340 | loss 2.7182
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace cartan::log {

enum class Level { debug, info, warning, error };

/// Called once when the rank is known; before that the process speaks as rank 0 of 1.
void set_rank(int rank, int world_size);
/// Lines below this level are dropped. Info lines come from rank 0 only, whatever the level.
void set_level(Level level);

void write(Level level, std::string_view room, std::string_view message);

template <class... Args>
void info(std::string_view room, fmt::format_string<Args...> text, Args&&... args) {
  write(Level::info, room, fmt::format(text, std::forward<Args>(args)...));
}
template <class... Args>
void warning(std::string_view room, fmt::format_string<Args...> text, Args&&... args) {
  write(Level::warning, room, fmt::format(text, std::forward<Args>(args)...));
}
template <class... Args>
void debug(std::string_view room, fmt::format_string<Args...> text, Args&&... args) {
  write(Level::debug, room, fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace cartan::log
