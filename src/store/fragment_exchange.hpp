// How fragments reach the owners of their blocks. Inside a node every holder writes its fragments to their
// places in the owner's memory, and only says what it wrote. Between nodes, or where all of it is little,
// they travel as messages, which the owner puts together.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "group.hpp"
#include "shares.hpp"

namespace cartan::store {

/// The exchange of one save. Collective are the making, carry() and the destruction.
class FragmentExchange {
 public:
  virtual ~FragmentExchange() = default;
  /// The same on every rank.
  virtual Index rounds() const = 0;
  /// Round by round from 0. Blocks of the round before may still be written from then on, older ones not.
  virtual void carry(Index round) = 0;
  /// This rank's blocks of the round just carried, complete, sorted. Throws InternalError that names tensor
  /// and elements that are missing or came twice.
  virtual std::vector<BlockRun> blocks() = 0;
};

/// What can fail on one rank only is left in the agreement.
std::unique_ptr<FragmentExchange> make_fragment_exchange(std::span<const TensorInfo> tensors,
                                                         const BlockTable& table, const Shares& shares,
                                                         comm::Communicator& comm, Agreement& agreement);

}  // namespace cartan::store
