// A communicator over NCCL: the control plane is MPI's, the data plane runs on a GPU's streams. Sums are
// taken in canonical order: every owner receives the other ranks' values of its chunk, in rounds that fit the
// room, and folds them with its own by a kernel. NCCL's own sums of floats are verbs apart.
#pragma once

#include <functional>
#include <mutex>

#include "comm/nccl/call_clock.hpp"
#include "comm/nccl/nccl_groups.hpp"
#include "comm/nccl/nccl_link.hpp"
#include "comm/nccl/nccl_registry.hpp"
#include "comm/reduction.hpp"

namespace cartan::comm {

class NcclCommunicator : public MpiGroup {
 public:
  /// What the communicators of a mesh share.
  struct Shared {
    double connect_timeout_s = 120, call_timeout_s = 0;
    std::shared_ptr<ReductionRoom> room;
    std::shared_ptr<NcclRegistry> registry;
    std::shared_ptr<FirstFailure> failure;
  };

  /// most_blocks: see LinkOptions.
  NcclCommunicator(CommHandle comm, const std::string& name, const MpiOptions& options, Shared shared,
                   int most_blocks = 0);
  ~NcclCommunicator() override;

  /// Connects all ranks, unless that has happened. Collective, as what follows.
  void connect();
  /// Connects each rank with the one `step` (1 or -1) further and with the one before: for messages in this
  /// direction.
  void connect_ring(int step);

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
  device::Event library_reduce_scatter(std::span<float> data, int shard, device::Stream& stream) override;
  device::Event library_all_reduce(std::span<float> data, device::Stream& stream) override;

  std::vector<CallRecord> recent_calls() const override;
  double seconds() const override;

  void read_clock() { clock_.read(); }
  /// Throws what NCCL noticed, or if a call takes too long.
  void poll();
  void abort() noexcept;

 private:
  /// One direction of a ring: a group of two, whose only call it serves.
  struct Neighbour {
    int peer = -1;
    std::unique_ptr<NcclCommunicator> pair;
  };
  struct Message {
    NcclLink& link;
    int peer;
  };

  using Work = std::function<void(const CallName&, cudaStream_t)>;
  /// Notes the call, and how long the work takes that is enqueued.
  device::Event recorded(std::string_view verb, std::size_t bytes, std::uint64_t sent, device::Stream& stream,
                         const Work& work);
  /// What is connected, in the ring too.
  std::vector<std::shared_ptr<NcclLink>> links() const;
  /// Of the oldest call that is not over; of call `sequence`.
  CallName oldest_call() const;
  CallName name_of(std::uint64_t sequence) const;
  /// Connected if need be.
  NcclLink& link();
  Message message_with(const Neighbour& neighbour, int peer);
  /// Sends this rank's of the parts to all.
  void gather(const CallName& call, std::span<const ByteView> parts, cudaStream_t stream);
  /// Folds the values of this rank's chunk on `stack`.
  void sum_chunk(const CallName& call, const ReductionPlan& plan, const PartialSums& sums,
                 std::span<float* const> stack, device::Stream& stream, cudaStream_t native);
  /// Sends this rank's values of a round to their owners and receives those of its own chunk, value i of the
  /// others at received + i * piece.
  void exchange(const CallName& call, const ReductionPlan& plan, const PartialSums& sums, Index round,
                Index piece, float* received, cudaStream_t stream);

  MpiOptions options_;
  Shared shared_;
  int most_blocks_;
  mutable std::mutex mutex_;        // of link_, next_ and previous_, which other threads look at
  std::shared_ptr<NcclLink> link_;  // shared with the memory that is registered there
  Neighbour next_, previous_;
  mutable CallClock clock_;
  PlanCache plans_;
};

}  // namespace cartan::comm
