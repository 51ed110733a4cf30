// One axis or plane of the mesh: collectives and point-to-point, over MPI on the host, NCCL on GPUs, or
// counted by sim.
//
// The control plane (small, host memory, blocking) is for agreement; the data plane is ordered on a stream,
// whose later work sees the result, and ends in an event for others. All are collective: every rank of the
// group calls them in the same order. Sums are in canonical order (core/canonical_tree.hpp), but for those
// that are called the library's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cartan/core/canonical_tree.hpp"
#include "cartan/core/error.hpp"
#include "cartan/core/exact_sum.hpp"
#include "cartan/device/device.hpp"

namespace cartan::comm {

using ByteView = std::span<std::byte>;
using ConstByteView = std::span<const std::byte>;

/// One vector's partial sums over the group. The group holds the leaves `leaves` of the tree: `parts`
/// neighbouring ranks hold parts of the same leaves (each a summand of every leaf), and holder h = rank /
/// parts of size / parts holds leaf_range of them. A rank keeps its stack of nodes in its slots (slot i: i-th
/// node), each an array of `count` floats that starts at slots[i]. It brings at least max(1, size of its
/// stack) slots; further ones are not looked at. Slots may differ between ranks in number and place.
/// slots_for says what suffices on every rank.
struct PartialSums {
  const CanonicalTree* tree = nullptr;
  std::vector<float*> slots;
  Index count = 0;
  std::optional<LeafRange> leaves{};  ///< none: all of the tree
  int parts = 1;
  int shard = 0;  ///< see chunk_range; 0: the size of the group
};

/// The part of `count` elements that rank `rank` of `size` owns after a reduce_scatter: whole blocks of
/// device::kSumBlock. With `shard` < size, a divisor, the group consists of groups of `shard` neighbours, and
/// the ranks at the same place in these own parts of the same chunk_range(count, place, shard).
LeafRange chunk_range(Index count, int rank, int size, int shard = 0);

/// Slots with which every rank of a group of `size` can hold its stack: max over ranks of its size, at
/// least 1.
int slots_for(const CanonicalTree& tree, int size);

/// What one call did; watchdog, tests and report read it.
struct CallRecord {
  std::uint64_t sequence = 0;
  std::string_view verb;
  std::size_t bytes = 0;   ///< payload of this rank
  std::uint64_t sent = 0;  ///< its share of Communicator::bytes_sent
  double seconds = 0;
  bool done = false;  ///< false: waiting, under way, or failed
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual const std::string& name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Control plane.
  virtual std::int64_t max(std::int64_t value) = 0;
  virtual void barrier() = 0;
  /// values[i] = sum over ranks of their values[i].
  virtual void sum(std::span<std::int64_t> values) = 0;
  /// values[i] = the largest of all ranks' values[i].
  virtual void max(std::span<std::int64_t> values) = 0;
  virtual void broadcast_host(ByteView data, int root) = 0;
  /// out holds size() times in.size() bytes, in the order of ranks. For set-up only: it grows with the group.
  virtual void all_gather_host(ConstByteView in, ByteView out) = 0;
  virtual void send_host(ConstByteView data, int peer) = 0;
  virtual void receive_host(ByteView data, int peer) = 0;

  // Data plane.
  /// Memory that peers can reach directly (a shared window inside a node, registered memory on GPUs),
  /// zero-filled. Operands that lie in it are exchanged without staging. Collective, and so is its release:
  /// same order on every rank.
  virtual device::Buffer allocate_exchange(device::Device& device, std::size_t size_bytes,
                                           device::MemoryKind kind, std::string_view label) = 0;
  virtual device::Event all_gather(ConstByteView in, ByteView out, device::Stream& stream) = 0;
  virtual device::Event all_to_all(ConstByteView in, ByteView out, device::Stream& stream) = 0;
  virtual device::Event broadcast(ByteView data, int root, device::Stream& stream) = 0;
  virtual device::Event send(ConstByteView data, int peer, device::Stream& stream) = 0;
  virtual device::Event receive(ByteView data, int peer, device::Stream& stream) = 0;
  /// parts[rank()] goes to every rank's parts of that number. On all ranks they have the same sizes and
  /// distances.
  virtual device::Event all_gather_parts(std::vector<ByteView> parts, device::Stream& stream) = 0;
  /// Pushes the group's leaves on the owner's stack: stack[i][0 ... chunk) are this rank's chunk
  /// (chunk_range) of the nodes of the leaves before `sums.leaves`, and of all up to its end afterwards (none
  /// before, so that stack[0] receives the whole sum, where sums.leaves are all of the tree). As many as the
  /// larger of the two. With a single one it may be slots[0] + chunk begin; otherwise they overlap no slot.
  /// The slots keep their values, but for such a one.
  virtual device::Event reduce_scatter(const PartialSums& sums, std::vector<float*> stack,
                                       device::Stream& stream) = 0;
  /// Every rank's slots[0] receives the canonical sum of all `count` elements; the other slots keep theirs.
  virtual device::Event all_reduce(const PartialSums& sums, device::Stream& stream) = 0;

  /// The sum of `data`, equally long on every rank, as the library of the GPUs takes it: in an order of its
  /// own, which may change with the ranks, the sizes and the machine. Each rank's chunk of its data
  /// (chunk_range) becomes the sum, the rest stays; with library_all_reduce all of it. Throws InternalError
  /// where there is no such library.
  virtual device::Event library_reduce_scatter(std::span<float> data, int shard, device::Stream& stream);
  virtual device::Event library_all_reduce(std::span<float> data, device::Stream& stream);
  /// values[i] = sum over ranks of their values[i], without overflow. Exact, whatever the order.
  virtual device::Event sum_integers(std::span<std::int64_t> values, device::Stream& stream) = 0;

  /// The calls so far (a bounded ring of the latest), and totals.
  virtual std::vector<CallRecord> recent_calls() const = 0;
  virtual std::uint64_t calls() const = 0;
  virtual double seconds() const = 0;  ///< spent in the data plane
  /// Bytes that this rank sent to other ranks in the data plane, by the definition of each verb and not by
  /// the way in which the data moved: the same in an imagined group. With n ranks: all_gather (n - 1) times
  /// this rank's part; all_to_all all but its own block; broadcast (n - 1) times the data at the root;
  /// reduce_scatter each node of its stack, less its own chunk; all_reduce that and (n - 1) times its chunk;
  /// the library's as if the stack were the data; send the data; sum_integers, which is for a few of them,
  /// nothing.
  virtual std::uint64_t bytes_sent() const = 0;
};

/// Sums over the group, exactly: every rank gets the same bits however the group is made up. Collective.
void sum_exactly(Communicator& comm, std::span<ExactSum> sums);

/// Collective over `comm`: either every rank returns, or every rank throws. Whatever fails locally, `work`
/// makes the same collective calls on every rank. The rank that failed rethrows; the others throw PeerError
/// that names it.
template <class Work>
void all_or_none(Communicator& comm, std::string_view what, Work&& work) {
  std::exception_ptr error;
  try {
    work();
  } catch (...) {
    error = std::current_exception();
  }
  const auto failed_rank = comm.max(error ? comm.rank() : -1);
  if (error) std::rethrow_exception(error);
  if (failed_rank >= 0) throw PeerError("{} failed on rank {}", what, failed_rank);
}

/// A group without peers. One rank alone: its verbs copy what the collective would bring it, on a host
/// stream. Imagined, as sim wants it, and whenever size > 1: calls are recorded, nothing moves, no address is
/// followed.
std::unique_ptr<Communicator> make_local_communicator(std::string name, int rank = 0, int size = 1,
                                                      bool imagined = false);

}  // namespace cartan::comm
