// Verbs without peers. For one rank they copy what a collective would bring it; in an imagined group no
// address is followed.
#include "comm/local/local_communicator.hpp"

#include <cstring>

#include "cartan/device/cuda_stream.hpp"
#include "comm/traffic.hpp"

namespace cartan::comm {

std::unique_ptr<Communicator> make_local_communicator(std::string name, int rank, int size, bool imagined) {
  return std::make_unique<LocalCommunicator>(std::move(name), rank, size, imagined || size > 1);
}

LocalCommunicator::LocalCommunicator(std::string name, int rank, int size, bool imagined,
                                     std::shared_ptr<TrafficTotals> totals,
                                     std::shared_ptr<ReductionRoom> room)
    : name_(std::move(name)),
      rank_(rank),
      size_(size),
      imagined_(imagined),
      recorder_(std::move(totals)),
      room_(std::move(room)) {
  CARTAN_ASSERT(size > 0 && rank >= 0 && rank < size);
}

void LocalCommunicator::note(std::string_view verb, std::size_t bytes, std::uint64_t sent) {
  recorder_.close(recorder_.open(verb, bytes, sent), 0, false);
}

std::int64_t LocalCommunicator::max(std::int64_t value) {
  note("max", sizeof value);
  return value;
}

void LocalCommunicator::barrier() { note("barrier", 0); }

void LocalCommunicator::sum(std::span<std::int64_t> values) { note("sum", values.size_bytes()); }

void LocalCommunicator::max(std::span<std::int64_t> values) { note("max", values.size_bytes()); }

void LocalCommunicator::broadcast_host(ByteView data, int) { note("broadcast_host", data.size()); }

void LocalCommunicator::all_gather_host(ConstByteView in, ByteView out) {
  CARTAN_ASSERT(out.size() == in.size() * static_cast<std::size_t>(size_));
  note("all_gather_host", in.size());
  for (int r = 0; r < size_ && !in.empty(); ++r) {
    std::memcpy(out.data() + static_cast<std::size_t>(r) * in.size(), in.data(), in.size());
  }
}

void LocalCommunicator::send_host(ConstByteView data, int) { note("send_host", data.size()); }

void LocalCommunicator::receive_host(ByteView data, int) {
  note("receive_host", data.size());
  if (!data.empty()) std::memset(data.data(), 0, data.size());
}

device::Buffer LocalCommunicator::allocate_exchange(device::Device& device, std::size_t size_bytes,
                                                    device::MemoryKind kind, std::string_view label) {
  device::Buffer buffer = device.allocate(size_bytes, kind, label);
  if (device.kind() == device::DeviceKind::cpu) {
    if (size_bytes > 0) std::memset(buffer.data(), 0, size_bytes);
    return buffer;
  }
  const auto* const sim = dynamic_cast<const device::SimDevice*>(&device);
  if (room_ != nullptr && sim != nullptr && sim->imitated() == device::DeviceKind::cuda)
    buffer.keep(room_->on(device));
  CARTAN_ASSERT(size_bytes % sizeof(float) == 0);
  device::Stream& stream = device.compute_stream();
  device.ops().fill_zero({buffer.data(), DType::f32, static_cast<Index>(size_bytes / sizeof(float))}, stream);
  stream.synchronize();
  return buffer;
}

device::Event LocalCommunicator::copy(std::string_view verb, ConstByteView from, ByteView to,
                                      std::uint64_t sent, device::Stream& stream) {
  const std::uint64_t sequence = recorder_.open(verb, from.size(), sent);
  if (imagined_ || from.data() == to.data()) {
    recorder_.close(sequence, 0, true);
    return stream.record();
  }
  if (device::native_stream(stream) != nullptr) {
    if (!from.empty()) device::copy_on_gpu(to.data(), from.data(), from.size(), stream);
    recorder_.close(sequence, 0, true);  // no peer takes part: not worth a measurement
    return stream.record();
  }
  auto* host = dynamic_cast<device::HostStream*>(&stream);
  if (host == nullptr)
    throw InternalError("{} works on host streams and on a GPU's; {} is neither", name_, stream.name());
  return host->submit([this, sequence, from, to] {
    timed(recorder_, sequence, true, [&] {
      if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
    });
  });
}

device::Event LocalCommunicator::all_gather(ConstByteView in, ByteView out, device::Stream& stream) {
  CARTAN_ASSERT(out.size() == in.size() * static_cast<std::size_t>(size_));
  return copy("all_gather", in, out, sent_by_all_gather(in.size(), size_), stream);
}

device::Event LocalCommunicator::all_to_all(ConstByteView in, ByteView out, device::Stream& stream) {
  CARTAN_ASSERT(in.size() == out.size());
  return copy("all_to_all", in, out, sent_by_all_to_all(in.size(), size_), stream);
}

device::Event LocalCommunicator::broadcast(ByteView data, int root, device::Stream& stream) {
  return copy("broadcast", data, data, sent_by_broadcast(data.size(), root, rank_, size_), stream);
}

device::Event LocalCommunicator::send(ConstByteView data, int peer, device::Stream& stream) {
  note("send", data.size(), sent_by_send(data.size(), peer, rank_));
  return stream.record();
}

device::Event LocalCommunicator::receive(ByteView data, int, device::Stream& stream) {
  note("receive", data.size());
  return stream.record();
}

device::Event LocalCommunicator::all_gather_parts(std::vector<ByteView> parts, device::Stream& stream) {
  CARTAN_ASSERT(parts.size() == static_cast<std::size_t>(size_));
  const ByteView own = parts[static_cast<std::size_t>(rank_)];
  return copy("all_gather", own, own, sent_by_all_gather(own.size(), size_), stream);
}

device::Event LocalCommunicator::reduce_scatter(const PartialSums& sums, std::vector<float*> stack,
                                                device::Stream& stream) {
  CARTAN_ASSERT(sums.tree != nullptr && !sums.slots.empty() && !stack.empty());
  CARTAN_ASSERT(imagined_ || !sums.leaves);
  // A single rank holds all leaves, so its stack is the root alone: the sum is there already.
  const std::span from(sums.slots[0], static_cast<std::size_t>(sums.count));
  return copy("reduce_scatter", std::as_bytes(from),
              {reinterpret_cast<std::byte*>(stack[0]), from.size_bytes()},
              sent_by_reduce_scatter(sums, rank_, size_), stream);
}

device::Event LocalCommunicator::sum_integers(std::span<std::int64_t> values, device::Stream& stream) {
  note("sum_integers", values.size_bytes());
  return stream.record();
}

device::Event LocalCommunicator::library_reduce_scatter(std::span<float> data, int shard,
                                                        device::Stream& stream) {
  const auto bytes = std::as_writable_bytes(data);
  return copy("reduce_scatter", bytes, bytes,
              sent_by_library_sum(std::ssize(data), rank_, size_, shard, false), stream);
}

device::Event LocalCommunicator::library_all_reduce(std::span<float> data, device::Stream& stream) {
  const auto bytes = std::as_writable_bytes(data);
  return copy("all_reduce", bytes, bytes, sent_by_library_sum(std::ssize(data), rank_, size_, 0, true),
              stream);
}

device::Event LocalCommunicator::all_reduce(const PartialSums& sums, device::Stream& stream) {
  CARTAN_ASSERT(sums.tree != nullptr && !sums.slots.empty());
  const std::span slot(sums.slots[0], static_cast<std::size_t>(sums.count));
  return copy("all_reduce", std::as_bytes(slot), std::as_writable_bytes(slot),
              sent_by_all_reduce(sums, rank_, size_), stream);
}

}  // namespace cartan::comm
