// A timeline as text. Each slot shows the action that runs in its middle.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cartan/pipeline/simulate.hpp"

namespace cartan::pipeline {
namespace {

std::string label_of(const Action& action, int chunks) {
  static constexpr std::string_view kLetters = "FBBW";
  std::string label =
      fmt::format("{}{}", kLetters[static_cast<std::size_t>(action.kind)], action.micro_batch);
  if (chunks > 1) label += fmt::format(".{}", action.chunk);
  return label;
}

double shortest_span(const Timeline& timeline) {
  double shortest = timeline.makespan;
  for (const auto& spans : timeline.stages) {
    for (const Timeline::Span& span : spans) {
      if (span.end > span.begin) shortest = std::min(shortest, span.end - span.begin);
    }
  }
  return shortest;
}

}  // namespace

std::string draw(const Timeline& timeline, std::size_t width) {
  const double slot = shortest_span(timeline);
  const auto slots = slot > 0 ? static_cast<std::size_t>(std::lround(timeline.makespan / slot)) : 0;
  std::size_t cell = 2;
  for (const auto& spans : timeline.stages) {
    for (const Timeline::Span& span : spans)
      cell = std::max(cell, label_of(span.action, timeline.chunks).size());
  }
  std::vector<std::vector<std::string>> rows(timeline.stages.size(),
                                             std::vector<std::string>(slots, std::string(cell, '.')));
  for (std::size_t stage = 0; stage < rows.size(); ++stage) {
    for (const Timeline::Span& span : timeline.stages[stage]) {
      const auto first = static_cast<std::size_t>(std::lround(span.begin / slot));
      const auto end = std::min(slots, static_cast<std::size_t>(std::lround(span.end / slot)));
      for (std::size_t i = first; i < end; ++i)
        rows[stage][i] = i == first ? fmt::format("{:<{}}", label_of(span.action, timeline.chunks), cell)
                                    : std::string(cell, '-');
    }
  }
  const std::size_t name = fmt::format("stage {}", rows.size()).size() + 1;
  const std::size_t columns = std::max<std::size_t>(1, width > name ? (width - name) / (cell + 1) : 1);
  std::string text;
  for (std::size_t first = 0; first < slots; first += columns) {
    if (first > 0) text += "\n";
    for (std::size_t stage = 0; stage < rows.size(); ++stage) {
      std::string line = fmt::format("{:<{}}", fmt::format("stage {}", stage), name);
      for (std::size_t i = first; i < std::min(slots, first + columns); ++i) line += " " + rows[stage][i];
      text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    }
  }
  return text;
}

}  // namespace cartan::pipeline
