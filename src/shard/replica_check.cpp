// Hashes of what several ranks hold, compared.
#include "cartan/shard/replica_check.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "cartan/core/hash.hpp"
#include "cartan/core/narrow.hpp"

namespace cartan::shard {
namespace {

// Values come to the host in pieces of this size.
constexpr Index kPieceBytes = Index{4} << 20;

/// A hash that has a negative.
std::int64_t hash_of(std::span<const std::byte> bytes, std::int64_t before = 0) {
  return narrow<std::int64_t>(hash_bytes(bytes, narrow<std::uint64_t>(before)) >> 1);
}

bool all_equal(comm::Communicator& comm, std::int64_t hash) { return comm.max(hash) == -comm.max(-hash); }

/// "rank 3 holds other values than ...", or, where no value has the majority, "ranks 0 and 1 hold ...".
std::string describe(const std::vector<std::array<std::int64_t, 2>>& hash_and_rank) {
  // Ranks with the same hash, in the order of the first of each.
  std::vector<std::pair<std::int64_t, std::vector<std::int64_t>>> holders;
  for (const std::array<std::int64_t, 2>& one : hash_and_rank) {
    auto found = std::find_if(holders.begin(), holders.end(),
                              [&](const auto& holder) { return holder.first == one[0]; });
    if (found == holders.end()) found = holders.insert(found, {one[0], {}});
    found->second.push_back(one[1]);
  }
  const auto most = std::max_element(holders.begin(), holders.end(), [](const auto& a, const auto& b) {
    return a.second.size() < b.second.size();
  });
  if (2 * most->second.size() <= hash_and_rank.size()) {
    std::string text;
    for (const auto& [hash, ranks] : holders)
      text += fmt::format("{}{}", text.empty() ? "ranks " : " and ", fmt::join(ranks, ", "));
    return text + " hold different values";
  }
  std::vector<std::int64_t> odd;
  for (const auto& [hash, ranks] : holders)
    if (hash != most->first) odd.insert(odd.end(), ranks.begin(), ranks.end());
  return fmt::format("rank{} {} hold{} other values than the other {} of {} replicas",
                     odd.size() == 1 ? "" : "s", fmt::join(odd, ", "), odd.size() == 1 ? "s" : "",
                     most->second.size(), hash_and_rank.size());
}

}  // namespace

ReplicaCheck::ReplicaCheck(FlatState& state, comm::Communicator& plane, comm::Communicator* replicas,
                           const SharedGradients& shared)
    : state_(state) {
  const auto& units = state.layout().units();
  const int stage = state.layout().place().stage;
  for (std::size_t u = 0; u < units.size(); ++u) {
    const LeafRange owned = units[u].gradient.owned;
    if (stage < 3 && plane.size() > 1) add(plane, u, {0, units[u].spec->elements}, false);
    if (stage == 0 && plane.size() > 1 && state.compute_dtype() != DType::f32) add(plane, u, owned, true);
    if (stage > 0 && replicas != nullptr) add(*replicas, u, owned, true);
  }
  for (const SharedGradients::Range& range : shared.ranges())
    add(*range.group, range.unit, range.elements, true);
}

ReplicaCheck::Group& ReplicaCheck::group_of(comm::Communicator& comm) {
  for (Group& group : groups_)
    if (group.comm == &comm) return group;
  return groups_.emplace_back(Group{&comm, {}});
}

void ReplicaCheck::add(comm::Communicator& comm, std::size_t unit, LeafRange elements, bool owned) {
  Group& group = group_of(comm);
  const auto item = [&](const model::ParameterSpec& parameter, Index begin, Index end) {
    group.items.push_back({parameter.name, owned ? state_.master(unit, begin, end - begin)
                                                 : state_.whole(unit, begin, end - begin)});
  };
  for_each_part_in(state_.layout().units()[unit], elements, item);
}

std::int64_t ReplicaCheck::hash(const Item& item) const {
  const Index element = narrow<Index>(size_of(item.values.dtype)), piece = kPieceBytes / element;
  std::vector<std::byte> host;
  std::int64_t hash = 0;
  device::Stream& stream = state_.device().compute_stream();
  for (Index done = 0; done < item.values.size; done += piece) {
    const Index count = std::min(piece, item.values.size - done);
    host.resize(narrow<std::size_t>(count * element));
    state_.device().copy_out(host.data(), device::advance(item.values.data, item.values.dtype, done),
                             host.size(), stream);
    hash = hash_of(host, hash);
  }
  return hash;
}

std::string ReplicaCheck::find_in(const Group& group, comm::Communicator& world) const {
  std::vector<std::int64_t> hashes;
  hashes.reserve(group.items.size());
  for (const Item& item : group.items) hashes.push_back(hash(item));
  if (all_equal(*group.comm, hash_of(std::as_bytes(std::span(hashes))))) return {};
  for (std::size_t i = 0; i < group.items.size(); ++i) {
    if (all_equal(*group.comm, hashes[i])) continue;
    const std::array<std::int64_t, 2> own{hashes[i], world.rank()};
    std::vector<std::array<std::int64_t, 2>> all(narrow<std::size_t>(group.comm->size()));
    group.comm->all_gather_host(std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)));
    return fmt::format("{}: {}", group.items[i].name, describe(all));
  }
  throw InternalError("hashes of all parameters differ, but those of none alone");
}

std::string ReplicaCheck::find(comm::Communicator& world) const {
  std::string own;
  for (const Group& group : groups_) {
    const std::string found = find_in(group, world);
    if (own.empty()) own = found;
  }
  // The lowest rank that found something tells all.
  const auto last = world.size() - 1;
  const auto finder = last - world.max(own.empty() ? -1 : last - world.rank());
  if (finder > last) return {};
  std::array<char, 512> text{};
  own.copy(text.data(), text.size() - 1);
  world.broadcast_host(std::as_writable_bytes(std::span(text)), narrow<int>(finder));
  return text.data();
}

}  // namespace cartan::shard
