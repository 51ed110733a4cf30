// A group of ranks over MPI without its data plane: the control plane, the record of calls, and who shares
// memory. MPI and NCCL move the data of such a group.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cartan/comm/communicator.hpp"
#include "comm/mpi/handles.hpp"
#include "comm/mpi/node_layout.hpp"
#include "comm/mpi/requests.hpp"
#include "comm/recorder.hpp"

namespace cartan::comm {

/// How a communicator works; the same on every rank. Sizes are parameters so that tests reach every path.
struct MpiOptions {
  bool force_messages = false;  ///< between ranks of one node too
  int ranks_per_node = 0;       ///< > 0: pretend that nodes hold so many neighbours of the world
  bool spin = true;             ///< false where ranks share CPUs
  std::size_t max_message_bytes = std::size_t{1} << 30;
  std::size_t window_bytes = std::size_t{16} << 20;  ///< of received values that a reduction holds
  std::size_t staging_bytes = std::size_t{1} << 20;  ///< of a rank, in its node's shared memory
  /// Called while a rank waits in the control plane; throws where there is nothing to wait for any more.
  std::function<void()> check_health{};
  std::shared_ptr<TrafficTotals> totals{};  ///< to which the communicator's traffic is added
};

class MpiGroup : public Communicator {
 public:
  const std::string& name() const override { return control_.name; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  MPI_Comm raw() const { return comm_.get(); }
  /// Whether all ranks, of which there are several, are on one node and may work through its memory.
  bool shares_memory() const { return !force_messages_ && layout_.one_node; }

  std::int64_t max(std::int64_t value) override;
  void barrier() override;
  void sum(std::span<std::int64_t> values) override;
  void max(std::span<std::int64_t> values) override;
  void broadcast_host(ByteView data, int root) override;
  void all_gather_host(ConstByteView in, ByteView out) override;
  void send_host(ConstByteView data, int peer) override;
  void receive_host(ByteView data, int peer) override;

  /// Tells all peers that this rank failed in what they may wait for outside of MPI, where they ask
  /// failed_peer(). The group is of no use afterwards. Not collective.
  void tell_failure();
  /// A rank that told so, or -1.
  int failed_peer() const;

  std::vector<CallRecord> recent_calls() const override { return recorder_.recent(); }
  std::uint64_t calls() const override { return recorder_.calls(); }
  double seconds() const override { return recorder_.data_plane_seconds(); }
  std::uint64_t bytes_sent() const override { return recorder_.bytes_sent(); }

 protected:
  /// Takes over `comm`. Collective over it, as is the destructor.
  MpiGroup(CommHandle comm, const std::string& name, const MpiOptions& options);

  const NodeLayout& layout() const { return layout_; }
  Recorder& recorder() { return recorder_; }
  const Recorder& recorder() const { return recorder_; }
  void require_peer(int peer) const;

 private:
  void combine(std::span<std::int64_t> values, std::string_view verb, MPI_Op operation);

  CommHandle comm_;
  int rank_ = 0, size_ = 1;
  bool force_messages_;
  NodeLayout layout_;
  MessageContext control_;
  Recorder recorder_;
};

/// Collective over `parent`: a duplicate, an error handler that returns codes, and a name that MPI's tools
/// show.
CommHandle duplicate(MPI_Comm parent, const std::string& name);
void prepare(MPI_Comm comm, const std::string& name);

}  // namespace cartan::comm
