// The ranks that write one file: agreement on failure, and the exchanges a save needs. A group of one needs
// no MPI.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cartan/comm/communicator.hpp"

namespace cartan::store {

/// Keeps a failure of this rank until all ranks have come to the same point. Collective calls stand outside
/// of attempt(), or inside where every rank makes them whatever has failed.
class Agreement {
 public:
  Agreement(comm::Communicator& comm, std::string what) : comm_(comm), what_(std::move(what)) {}

  /// Runs `work` unless something has failed on this rank before.
  template <class Work>
  void attempt(Work&& work) {
    if (error_) return;
    try {
      work();
    } catch (...) {
      error_ = std::current_exception();
    }
  }
  bool failed_here() const { return error_ != nullptr; }
  /// Whether any rank has failed. Collective.
  bool anyone_failed();
  /// Returns on every rank, or throws on every rank: the own error of the rank that failed (the highest, if
  /// several did); on the others one of the same class, "WHAT failed on rank N". Collective.
  void settle();

 private:
  std::int64_t worst();

  comm::Communicator& comm_;
  std::string what_;
  std::exception_ptr error_;
};

/// `text` of rank 0 for every rank. Collective.
std::string broadcast_text(comm::Communicator& comm, std::string text, int root = 0);

/// Memory for one round after another: fresh pages for each would cost more than what is done with them.
class RoundMemory {
 public:
  /// `bytes` of arbitrary content; the former ones are given up.
  std::span<std::byte> take(std::size_t bytes);

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::size_t capacity_ = 0;
};

/// Messages for every rank in the order of ranks, `counts[r]` bytes for rank r.
struct Outgoing {
  std::span<const std::byte> bytes;
  std::vector<std::int64_t> counts;
};
/// An equal number of sizes for each rank, in the order of ranks; returns what the others have for this one.
/// Collective.
std::vector<std::int64_t> exchange_counts(comm::Communicator& comm, const std::vector<std::int64_t>& counts);
/// What the others sent here, in the order of ranks: in `memory`, or alone the messages themselves.
/// Collective. Each rank's total must fit an int.
std::span<const std::byte> exchange(comm::Communicator& comm, const Outgoing& outgoing,
                                    const std::vector<std::int64_t>& incoming_counts, RoundMemory& memory);
/// On rank 0 what all ranks passed, in the order of ranks; empty elsewhere. Collective.
std::vector<std::byte> gather_to_root(comm::Communicator& comm, std::vector<std::byte> mine);

}  // namespace cartan::store
