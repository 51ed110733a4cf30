// A communicator over MPI: the control plane on one MPI communicator, the data plane on a duplicate, so that
// the two may run on different threads at once.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cartan/comm/communicator.hpp"
#include "comm/mpi/handles.hpp"
#include "comm/mpi/message_collectives.hpp"
#include "comm/mpi/node_collectives.hpp"
#include "comm/mpi/node_layout.hpp"
#include "comm/mpi/requests.hpp"
#include "comm/mpi/shared_collectives.hpp"
#include "comm/recorder.hpp"

namespace cartan::comm {

/// How a communicator works; the same on every rank. Sizes are parameters so that tests reach every path.
struct MpiOptions {
  bool force_messages = false;  ///< between ranks of one node too
  int ranks_per_node = 0;       ///< > 0: pretend that nodes hold so many neighbours of the world
  bool spin = true;             ///< false where ranks share CPUs
  std::size_t max_message_bytes = std::size_t{1} << 30;
  std::size_t window_bytes = MessageCollectives::kWindowBytes;
  std::size_t staging_bytes = SharedCollectives::kStagingBytes;
  std::shared_ptr<TrafficTotals> totals{};  ///< to which the communicator's traffic is added
};

class MpiCommunicator : public Communicator {
 public:
  /// Takes over `comm`. Collective over it, as is the destructor.
  MpiCommunicator(CommHandle comm, const std::string& name, const MpiOptions& options);

  const std::string& name() const override { return control_.name; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  MPI_Comm raw() const { return comm_.get(); }
  /// Between all of its ranks.
  bool uses_shared_memory() const { return shared_ != nullptr && nodes_ == nullptr; }
  /// Inside nodes, of which there are several.
  bool uses_nodes() const { return nodes_ != nullptr; }
  /// Payload of the data plane's messages to ranks on other nodes, but for gathers and broadcasts by MPI's
  /// own collectives. Where the nodes are not regular (NodeLayout), of all messages.
  std::uint64_t bytes_between_nodes() const { return between_nodes_; }

  std::int64_t max(std::int64_t value) override;
  void barrier() override;
  void sum(std::span<std::int64_t> values) override;
  void broadcast_host(ByteView data, int root) override;
  void all_gather_host(ConstByteView in, ByteView out) override;
  void send_host(ConstByteView data, int peer) override;
  void receive_host(ByteView data, int peer) override;

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

  std::vector<CallRecord> recent_calls() const override { return recorder_.recent(); }
  std::uint64_t calls() const override { return recorder_.calls(); }
  double seconds() const override { return recorder_.data_plane_seconds(); }
  std::uint64_t bytes_sent() const override { return recorder_.bytes_sent(); }

 private:
  /// Runs on a stream's thread; notices a second stream.
  template <class Work>
  void collective(Work&& work);
  device::Event submit(device::Stream& stream, std::string_view verb, std::size_t bytes, std::uint64_t sent,
                       std::function<void()> task);
  device::Event reduce(const PartialSums& sums, std::vector<float*> stack, Reach reach,
                       device::Stream& stream);
  std::shared_ptr<const ReductionPlan> plan_of(const PartialSums& sums);
  void require_peer(int peer) const;
  /// Whose ranks share windows.
  MPI_Comm node_comm() const { return layout_.one_node ? raw() : layout_.node.get(); }

  CommHandle comm_, data_comm_;
  int rank_ = 0, size_ = 1;
  NodeLayout layout_;
  std::atomic<std::uint64_t> between_nodes_{0};
  MessageContext control_, data_, across_;
  MessageCollectives messages_;
  std::unique_ptr<SharedCollectives> shared_;  // between the ranks of a node, where there are several
  std::unique_ptr<NodeCollectives> nodes_;     // where there are several nodes of several ranks
  std::atomic<bool> in_collective_{false};
  Recorder recorder_;
  std::map<ReductionShape::Key, std::shared_ptr<const ReductionPlan>> plans_;
};

/// Collective over `parent`: a duplicate, an error handler that returns codes, and a name that MPI's tools
/// show.
CommHandle duplicate(MPI_Comm parent, const std::string& name);
void prepare(MPI_Comm comm, const std::string& name);

}  // namespace cartan::comm
