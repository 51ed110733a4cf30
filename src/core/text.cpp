#include "cartan/core/text.hpp"

#include <fmt/format.h>
#include <charconv>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace cartan {
namespace {

std::string scaled(double value, double base, std::span<const char* const> units) {
  std::size_t unit = 0;
  while (value >= base && unit + 1 < units.size()) {
    value /= base;
    ++unit;
  }
  if (unit == 0) return fmt::format("{:.0f}{}", value, units[0]);
  return fmt::format("{:.{}f}{}", value, value < 10 ? 2 : value < 100 ? 1 : 0, units[unit]);
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t substitute = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, substitute});
    }
  }
  return row.back();
}

}  // namespace

std::string format_bytes(std::uint64_t bytes) {
  static constexpr std::array<const char*, 6> units{" B", " KiB", " MiB", " GiB", " TiB", " PiB"};
  return scaled(static_cast<double>(bytes), 1024.0, units);
}

std::string format_count(std::uint64_t count) {
  static constexpr std::array<const char*, 5> units{"", " k", " M", " B", " T"};
  return scaled(static_cast<double>(count), 1000.0, units);
}

std::string format_duration(double seconds) {
  const auto total = static_cast<long long>(std::llround(std::max(0.0, seconds)));
  if (total < 60) return fmt::format("{} s", total);
  if (total < 3600) return fmt::format("{} min {:02} s", total / 60, total % 60);
  return fmt::format("{} h {:02} min", total / 3600, total % 3600 / 60);
}

std::string multiples_around(std::int64_t value, std::int64_t unit) {
  const std::int64_t below = value / unit * unit;
  return below == 0 ? fmt::format("{}", unit) : fmt::format("{} or {}", below, below + unit);
}

std::optional<std::string> nearest(std::string_view word, std::span<const std::string> candidates) {
  std::optional<std::string> best;
  std::size_t best_distance = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (true) {
    const std::size_t end = text.find(separator, begin);
    parts.emplace_back(text.substr(begin, end == std::string_view::npos ? end : end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view blanks = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(blanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

std::optional<std::vector<bool>> parse_ranges(std::string_view list, std::int64_t size) {
  std::vector<bool> named(static_cast<std::size_t>(size));
  const auto number = [&](std::string_view digits) -> std::optional<std::int64_t> {
    std::int64_t value = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size() || value < 0 || value >= size) return {};
    return value;
  };
  for (const std::string& entry : split(list, ',')) {
    const std::string_view text = trim(entry);
    const std::size_t dash = text.find('-');
    const auto first = number(text.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : number(text.substr(dash + 1));
    if (!first || !last || *first > *last) return {};
    for (std::int64_t value = *first; value <= *last; ++value) named[static_cast<std::size_t>(value)] = true;
  }
  return named;
}

std::string format_ranges(const std::vector<bool>& named) {
  if (std::find(named.begin(), named.end(), false) == named.end()) return "all";
  std::string list;
  for (std::size_t begin = 0; begin < named.size(); ++begin) {
    if (!named[begin]) continue;
    std::size_t last = begin;
    while (last + 1 < named.size() && named[last + 1]) ++last;
    list += fmt::format("{}{}", list.empty() ? "" : ",", begin);
    if (last > begin) list += fmt::format("-{}", last);
    begin = last;
  }
  return list;
}

}  // namespace cartan
