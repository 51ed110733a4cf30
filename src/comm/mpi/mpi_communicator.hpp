// A communicator over MPI: the control plane on one MPI communicator, the data plane on a duplicate, so that
// the two may run on different threads at once.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "comm/mpi/message_collectives.hpp"
#include "comm/mpi/mpi_group.hpp"
#include "comm/mpi/node_collectives.hpp"
#include "comm/mpi/shared_collectives.hpp"

namespace cartan::comm {

class MpiCommunicator : public MpiGroup {
 public:
  /// Takes over `comm`. Collective over it, as is the destructor.
  MpiCommunicator(CommHandle comm, const std::string& name, const MpiOptions& options);

  /// Between all of its ranks.
  bool uses_shared_memory() const { return shared_ != nullptr && nodes_ == nullptr; }
  /// Inside nodes, of which there are several.
  bool uses_nodes() const { return nodes_ != nullptr; }
  /// Payload of the data plane's messages to ranks on other nodes, but for gathers and broadcasts by MPI's
  /// own collectives. Where the nodes are not regular (NodeLayout), of all messages.
  std::uint64_t bytes_between_nodes() const { return between_nodes_; }

  device::Buffer allocate_exchange(device::Device& device, std::size_t size_bytes, device::MemoryKind kind,
                                   std::string_view label) override;
  device::Event all_gather(ConstByteView in, ByteView out, device::Stream& stream) override;
  device::Event all_to_all(ConstByteView in, ByteView out, device::Stream& stream) override;
  device::Event broadcast(ByteView data, int root, device::Stream& stream) override;
  device::Event send(ConstByteView data, int peer, device::Stream& stream) override;
  device::Event receive(ByteView data, int peer, device::Stream& stream) override;
  device::Event all_gather_parts(std::vector<ByteView> parts, device::Stream& stream) override;
  device::Event reduce_scatter(const PartialSums& sums, std::vector<float*> stack,
                               device::Stream& stream) override;
  device::Event all_reduce(const PartialSums& sums, device::Stream& stream) override;
  device::Event sum_integers(std::span<std::int64_t> values, device::Stream& stream) override;

 private:
  /// Runs on a stream's thread; notices a second stream.
  template <class Work>
  void collective(Work&& work);
  device::Event submit(device::Stream& stream, std::string_view verb, std::size_t bytes, std::uint64_t sent,
                       std::function<void()> task);
  device::Event reduce(const PartialSums& sums, std::vector<float*> stack, Reach reach,
                       device::Stream& stream);
  /// Whose ranks share windows.
  MPI_Comm node_comm() const { return layout().one_node ? raw() : layout().node.get(); }

  CommHandle data_comm_;
  std::atomic<std::uint64_t> between_nodes_{0};
  MessageContext data_, across_;
  MessageCollectives messages_;
  std::unique_ptr<SharedCollectives> shared_;  // between the ranks of a node, where there are several
  std::unique_ptr<NodeCollectives> nodes_;     // where there are several nodes of several ranks
  std::atomic<bool> in_collective_{false};
  PlanCache plans_;
};

}  // namespace cartan::comm
