#include "tools/rank_texts.hpp"

#include <algorithm>
#include <utility>

#include "cartan/core/narrow.hpp"

namespace cartan::tools {

Texts gather(comm::Communicator& world, const std::string& own) {
  std::vector<std::int64_t> sizes(narrow<std::size_t>(world.size()), 0);
  sizes[narrow<std::size_t>(world.rank())] = narrow<std::int64_t>(own.size());
  world.max(sizes);
  Texts all(sizes.size());
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
    all[rank] = narrow<int>(rank) == world.rank() ? own : std::string(narrow<std::size_t>(sizes[rank]), ' ');
    world.broadcast_host(std::as_writable_bytes(std::span(all[rank])), narrow<int>(rank));
  }
  return all;
}

std::string summary(const Texts& texts) {
  std::vector<std::pair<std::string, Texts>> ranks_of;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const auto same = std::find_if(ranks_of.begin(), ranks_of.end(),
                                   [&](const auto& one) { return one.first == texts[rank]; });
    Texts& ranks = same == ranks_of.end() ? ranks_of.emplace_back(texts[rank], Texts{}).second : same->second;
    ranks.push_back(std::to_string(rank));
  }
  if (ranks_of.size() == 1) return ranks_of.front().first;
  constexpr std::size_t kMost = 8;
  Texts parts;
  for (auto& [text, ranks] : ranks_of) {
    const bool is_one = ranks.size() == 1, is_long = ranks.size() > kMost;
    const std::size_t more = is_long ? ranks.size() - kMost : 0;
    if (is_long) ranks.resize(kMost);
    parts.push_back(fmt::format("{} (rank{} {}{})", text, is_one ? "" : "s", fmt::join(ranks, ", "),
                                is_long ? fmt::format(" and {} more", more) : ""));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

Texts gather_failures(comm::Communicator& world, const std::string& own) {
  Texts all = gather(world, own);
  if (std::all_of(all.begin(), all.end(), [](const std::string& text) { return text.empty(); })) return {};
  for (std::string& text : all)
    if (text.empty()) text = "nothing wrong";
  return all;
}

}  // namespace cartan::tools
