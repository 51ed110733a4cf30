// Whether ranks that should hold the same parameters do: a bit that flipped in one rank's memory, or a
// library that sums differently on one node, spreads unseen otherwise.
//
// Ranks compare hashes. As long as all agree, a group exchanges two numbers, however many ranks it has.
#pragma once

#include <string>
#include <vector>

#include "cartan/comm/communicator.hpp"
#include "cartan/shard/flat_state.hpp"
#include "cartan/shard/shared_gradients.hpp"

namespace cartan::shard {

class ReplicaCheck {
 public:
  /// `replicas`: the ranks of the plane that own the same parts; null where there is only one. All of it must
  /// outlive the check.
  ReplicaCheck(FlatState& state, comm::Communicator& plane, comm::Communicator* replicas,
               const SharedGradients& shared);

  /// Names the first parameter of which not all holders have the same bits, and the ranks of `world` that
  /// differ; empty where all agree. The same on every rank. Collective over `world`. Blocks.
  std::string find(comm::Communicator& world) const;

 private:
  struct Item {
    std::string name;
    device::Vector values;
  };
  struct Group {
    comm::Communicator* comm = nullptr;
    std::vector<Item> items;
  };
  Group& group_of(comm::Communicator& comm);
  void add(comm::Communicator& comm, std::size_t unit, LeafRange elements, bool owned);
  std::string find_in(const Group& group, comm::Communicator& world) const;
  std::int64_t hash(const Item& item) const;

  FlatState& state_;
  std::vector<Group> groups_;
};

}  // namespace cartan::shard
