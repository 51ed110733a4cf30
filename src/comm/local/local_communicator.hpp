// The communicator without peers: of a single rank, and of sim, where a group may have any size but nothing
// moves.
#pragma once

#include "cartan/comm/communicator.hpp"
#include "comm/recorder.hpp"
#include "comm/reduction_room.hpp"

namespace cartan::comm {

class LocalCommunicator : public Communicator {
 public:
  /// room: of an imagined mesh, which its groups on imagined GPUs have.
  LocalCommunicator(std::string name, int rank, int size, bool imagined,
                    std::shared_ptr<TrafficTotals> totals = nullptr,
                    std::shared_ptr<ReductionRoom> room = nullptr);
  bool imagined() const { return imagined_; }

  const std::string& name() const override { return name_; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::int64_t max(std::int64_t value) override;
  void barrier() override;
  void sum(std::span<std::int64_t> values) override;
  void max(std::span<std::int64_t> values) override;
  void broadcast_host(ByteView data, int root) override;
  void all_gather_host(ConstByteView in, ByteView out) override;
  void send_host(ConstByteView data, int peer) override;
  /// Receives zeros.
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
  device::Event sum_integers(std::span<std::int64_t> values, device::Stream& stream) override;
  device::Event library_reduce_scatter(std::span<float> data, int shard, device::Stream& stream) override;
  device::Event library_all_reduce(std::span<float> data, device::Stream& stream) override;

  std::vector<CallRecord> recent_calls() const override { return recorder_.recent(); }
  std::uint64_t calls() const override { return recorder_.calls(); }
  double seconds() const override { return recorder_.data_plane_seconds(); }
  std::uint64_t bytes_sent() const override { return recorder_.bytes_sent(); }

 private:
  void note(std::string_view verb, std::size_t bytes, std::uint64_t sent = 0);
  /// `from` becomes `to`, unless the group is imagined.
  device::Event copy(std::string_view verb, ConstByteView from, ByteView to, std::uint64_t sent,
                     device::Stream& stream);

  std::string name_;
  int rank_, size_;
  bool imagined_;
  Recorder recorder_;
  std::shared_ptr<ReductionRoom> room_;
};

}  // namespace cartan::comm
