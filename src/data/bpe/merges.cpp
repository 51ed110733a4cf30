#include "merges.hpp"

#include <algorithm>
#include <bit>
#include <queue>

#include "cartan/core/narrow.hpp"

namespace cartan::data::bpe {
namespace {

constexpr std::uint32_t kNoRank = ~std::uint32_t{0};
/// Up to here scanning is faster than a heap.
constexpr std::size_t kLongestScan = 64;

}  // namespace

MergeTable::MergeTable(std::size_t merges)
    : slots_(std::bit_ceil(2 * merges + 2), Slot{kEmpty, {kNoRank, 0}}),
      shift_(64 - std::countr_zero(slots_.size())) {}

std::size_t MergeTable::slot_of(std::uint64_t pair) const {
  const std::size_t mask = slots_.size() - 1;
  std::uint64_t mixed = (pair ^ pair >> 29) * 0x9E3779B97F4A7C15U;
  mixed = (mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93U;
  std::size_t slot = mixed >> shift_;
  while (slots_[slot].pair != kEmpty && slots_[slot].pair != pair) slot = (slot + 1) & mask;
  return slot;
}

void MergeTable::add(std::int32_t left, std::int32_t right, Merge merge) {
  const std::uint64_t pair = pair_of(left, right);
  slots_[slot_of(pair)] = {pair, merge};
}

const MergeTable::Merge* MergeTable::find(std::int32_t left, std::int32_t right) const {
  const Slot& slot = slots_[slot_of(pair_of(left, right))];
  return slot.pair == kEmpty ? nullptr : &slot.merge;
}

void MergeTable::apply(std::vector<std::int32_t>& ids) const {
  if (ids.size() <= kLongestScan)
    apply_by_scanning(ids);
  else
    apply_by_heap(ids);
}

void MergeTable::apply_by_scanning(std::vector<std::int32_t>& ids) const {
  if (ids.size() < 2) return;
  thread_local std::vector<Merge> merges;  // of each id with the next
  const auto merge_at = [&](std::size_t i) {
    const Merge* found = i + 1 < ids.size() ? find(ids[i], ids[i + 1]) : nullptr;
    return found != nullptr ? *found : Merge{kNoRank, 0};
  };
  merges.resize(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) merges[i] = merge_at(i);
  while (true) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < ids.size(); ++i)
      if (merges[i].rank < merges[best].rank) best = i;
    if (merges[best].rank == kNoRank) return;
    ids[best] = merges[best].id;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    merges.erase(merges.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    merges[best] = merge_at(best);
    if (best > 0) merges[best - 1] = merge_at(best - 1);
  }
}

void MergeTable::apply_by_heap(std::vector<std::int32_t>& ids) const {
  // Ids form a list: a join keeps the left place and takes the right one out.
  struct Candidate {
    std::uint32_t rank;
    std::uint32_t place;
    std::int32_t left, right;  ///< as they were; a candidate whose place has changed since is passed over
    bool operator<(const Candidate& other) const {  // for a heap with the lowest rank on top
      return rank != other.rank ? rank > other.rank : place > other.place;
    }
  };
  const auto count = narrow<std::uint32_t>(ids.size());
  std::vector<std::uint32_t> next(count), before(count);
  std::vector<Candidate> candidates;
  candidates.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    next[i] = i + 1;
    before[i] = i - 1;
    if (i + 1 == count) break;
    if (const Merge* merge = find(ids[i], ids[i + 1]))
      candidates.push_back({merge->rank, i, ids[i], ids[i + 1]});
  }
  std::priority_queue<Candidate> heap(std::less<Candidate>(), std::move(candidates));
  const auto offer = [&](std::uint32_t place) {
    const std::int32_t left = ids[place], right = ids[next[place]];
    if (const Merge* merge = find(left, right)) heap.push({merge->rank, place, left, right});
  };
  constexpr std::int32_t kGone = -1;
  while (!heap.empty()) {
    const Candidate top = heap.top();
    heap.pop();
    const std::uint32_t place = top.place;
    if (ids[place] != top.left || next[place] == count || ids[next[place]] != top.right) continue;
    const std::uint32_t gone = next[place];
    ids[place] = find(top.left, top.right)->id;
    ids[gone] = kGone;
    next[place] = next[gone];
    if (next[place] != count) before[next[place]] = place;
    if (place > 0) offer(before[place]);
    if (next[place] != count) offer(place);
  }
  ids.erase(std::remove(ids.begin(), ids.end(), kGone), ids.end());
}

}  // namespace cartan::data::bpe
