// Huffman's tree over the weights, and the way down for one sample.
#include "cartan/data/mixture.hpp"

#include <functional>
#include <queue>
#include <utility>

#include "cartan/core/error.hpp"

namespace cartan::data {
namespace {

/// round(count * part / whole), exactly. Grows by 0 or 1 as count grows by 1, since part <= whole.
Index share(Index count, std::uint64_t part, std::uint64_t whole) {
  using Wide = unsigned __int128;
  return static_cast<Index>((Wide{2} * static_cast<Wide>(count) * part + whole) / (Wide{2} * whole));
}

}  // namespace

Mixture::Mixture(std::span<const std::uint64_t> weights) {
  CARTAN_ASSERT(!weights.empty());
  using Entry = std::pair<std::uint64_t, Index>;  // weight, node: equal weights go by number
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open;
  std::uint64_t sum = 0;
  for (const std::uint64_t weight : weights) {
    CARTAN_ASSERT(weight > 0 && weight < (std::uint64_t{1} << 62) - sum);
    sum += weight;
    open.emplace(weight, static_cast<Index>(nodes_.size()));
    nodes_.push_back({weight});
  }
  while (open.size() > 1) {
    const Entry left = open.top();
    open.pop();
    const Entry right = open.top();
    open.pop();
    open.emplace(left.first + right.first, static_cast<Index>(nodes_.size()));
    nodes_.push_back({left.first + right.first, left.second, right.second});
  }
}

Mixture::Choice Mixture::operator()(Index sample) const {
  Index at = static_cast<Index>(nodes_.size()) - 1;
  while (true) {
    const Node& node = nodes_[static_cast<std::size_t>(at)];
    if (node.left < 0) return {at, sample};
    const std::uint64_t left_weight = nodes_[static_cast<std::size_t>(node.left)].weight;
    const Index before = share(sample, left_weight, node.weight);
    const bool goes_left = share(sample + 1, left_weight, node.weight) > before;
    at = goes_left ? node.left : node.right;
    sample = goes_left ? before : sample - before;
  }
}

}  // namespace cartan::data
