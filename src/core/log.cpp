// The log, on spdlog's stderr sink. spdlog's own registry is not used: one logger, owned here.
#include "cartan/core/log.hpp"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <array>
#include <atomic>

namespace cartan::log {
namespace {

std::atomic<int> rank_of_process{0};
std::atomic<int> world{1};

spdlog::logger& logger() {
  static spdlog::logger instance = [] {
    spdlog::logger made("cartan", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made.set_pattern("%H:%M:%S %v");
    made.set_level(spdlog::level::info);
    made.flush_on(spdlog::level::trace);
    return made;
  }();
  return instance;
}

spdlog::level::level_enum to_spdlog(Level level) {
  static constexpr std::array levels{spdlog::level::debug, spdlog::level::info, spdlog::level::warn,
                                     spdlog::level::err};
  return levels.at(static_cast<std::size_t>(level));
}

}  // namespace

void set_rank(int rank, int world_size) {
  rank_of_process = rank;
  world = world_size;
}

void set_level(Level level) { logger().set_level(to_spdlog(level)); }

void write(Level level, std::string_view room, std::string_view message) {
  const int rank = rank_of_process;
  if (level <= Level::info && rank != 0) return;
  static constexpr std::array letters{'D', 'I', 'W', 'E'};
  logger().log(to_spdlog(level), "{} r{:03} {:<6} {}", letters.at(static_cast<std::size_t>(level)), rank,
               room, message);
}

}  // namespace cartan::log
